package inbox

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A reference may be an object's key, so a cast of the whole of it fails for some events and not for others.
func TestObjects_NoStatementTakesAReferenceForAnID(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(file, "_test.go") && strings.Contains(string(text), "raw_payload_ref::uuid") {
			t.Errorf("%s casts raw_payload_ref to uuid; use payloadIDOf", file)
		}
	}
}
