package inbox_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

// canaryForms are the forms in which a text may stand somewhere by accident.
func canaryForms(canary string) map[string][]byte {
	raw := []byte(canary)
	forms := map[string][]byte{
		"raw":          raw,
		"hex":          []byte(hex.EncodeToString(raw)),
		"HEX":          []byte(strings.ToUpper(hex.EncodeToString(raw))),
		"URL-escaped":  []byte(url.QueryEscape(canary)),
		"JSON-escaped": []byte(strings.ReplaceAll(canary, "/", `\/`)),
	}
	var le, be []byte
	for _, c := range raw {
		le, be = append(le, c, 0), append(be, 0, c)
	}
	forms["UTF-16LE"], forms["UTF-16BE"] = le, be
	// Base64 of a text inside others: by the offset, the first and last characters depend on the neighbours.
	for offset := range 3 {
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, offset), raw...))
		forms[fmt.Sprintf("base64 at %d", offset)] = []byte(text[(offset*8+5)/6 : len(text)-2])
	}
	return forms
}

// scan looks for needles in every file below dir and names what it finds.
func scan(t *testing.T, dir string, needles map[string][]byte) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || (err == nil && !d.Type().IsRegular()) {
			return nil
		}
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for name, needle := range needles {
			if bytes.Contains(content, needle) {
				found = append(found, name+" in "+filepath.Base(filepath.Dir(path))+"/"+filepath.Base(path))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// No payload and no kept header is readable in the database's files, its write-ahead log or its log, in any form.
func TestStore_CanaryScan(t *testing.T) {
	t.Parallel()
	pg := devstacktest.NewPostgres(t, devstacktest.Options{Settings: map[string]string{
		"log_statement": "all", "log_min_duration_statement": "0", "log_parameter_max_length": "0", "log_parameter_max_length_on_error": "0",
		"autovacuum": "off",
	}})
	b := open(t, devstacktest.NewDatabase(t, pg, "canary"))
	b.subscribe(t, "billing")

	// Every canary begins with the same random characters: what finds these finds each of them.
	var seed [11]byte
	rand.Read(seed[:])
	prefix := "~/" + hex.EncodeToString(seed[:])
	var wg sync.WaitGroup
	for worker := range 10 {
		wg.Go(func() {
			for n := worker; n < 300; n += 10 {
				canary := fmt.Sprintf("%s%04d", prefix, n)
				r := receipt(fmt.Sprintf("evt_%d", n), "invoice.paid", `{"name":"`+canary+strings.Repeat(" filler", n)+`"}`)
				r.Headers = append(r.Headers, inbox.Header{Name: "X-Canary", Value: canary})
				got, err := b.Accept(t.Context(), r)
				if err != nil {
					t.Error(err)
					return
				}
				switch n % 3 {
				case 0:
					b.finish(t, "billing", got[0].InboxID)
				case 1:
					if err := b.Fail(t.Context(), b.leaseOne(t, "billing", got[0].InboxID), "refused"); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	flush := func() {
		t.Helper()
		if _, err := b.db.Exec(t.Context(), `checkpoint`); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	needles := canaryForms(prefix)
	if found := scan(t, pg.Dir(), needles); len(found) != 0 {
		t.Errorf("found %v", found)
	}

	// The search finds what is there: each form, planted on purpose.
	plant(t, b.db, needles)
	flush()
	found := strings.Join(scan(t, pg.Dir(), needles), "\n")
	for name := range needles {
		if !strings.Contains(found, name+" in ") {
			t.Errorf("a planted %s was not found", name)
		}
	}
}

func plant(t *testing.T, db *pgxpool.Pool, forms map[string][]byte) {
	t.Helper()
	if _, err := db.Exec(t.Context(), `create table leak (what bytea)`); err != nil {
		t.Fatal(err)
	}
	for _, form := range forms {
		if _, err := db.Exec(t.Context(), `insert into leak values ($1)`, form); err != nil {
			t.Fatal(err)
		}
	}
}
