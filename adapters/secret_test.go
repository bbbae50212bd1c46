package adapters_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/adapters"
)

func TestSecret_PrintsRedacted(t *testing.T) {
	t.Parallel()
	const canary = "whsec_canary_5f2c77de"
	secret := adapters.Secret{Version: "v1", Value: []byte(canary)}
	values := map[string]any{
		"value":    secret,
		"pointer":  &secret,
		"slice":    []adapters.Secret{secret},
		"map":      map[string]adapters.Secret{"s": secret},
		"struct":   struct{ S adapters.Secret }{secret},
		"endpoint": adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{secret}},
		"address":  &adapters.Endpoint{ID: "e", Secrets: []adapters.Secret{secret}},
		"error":    fmt.Errorf("wrapped: %w", fmt.Errorf("%v", secret)),
	}
	for name, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%08b", "%c", "%T %v", "%10.3s"} {
			shows(t, name+" "+verb, fmt.Sprintf(verb, v, v), canary)
		}
		shows(t, name+" Sprint", fmt.Sprint(v), canary)
		shows(t, name+" Sprintln", fmt.Sprintln(v), canary)
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		shows(t, name+" JSON", string(text), canary)
		if text, err = yaml.Marshal(v); err == nil {
			shows(t, name+" YAML", string(text), canary)
		}
		var log bytes.Buffer
		logger := zerolog.New(&log)
		logger.Info().Interface("v", v).Any("w", v).Msg("m")
		slog.New(slog.NewTextHandler(&log, nil)).Info("m", "v", v)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "v", v)
		shows(t, name+" log", log.String(), canary)
	}
	func() {
		defer func() { shows(t, "panic", fmt.Sprint(recover()), canary) }()
		panic(secret)
	}()
	if got := secret.String(); got != "[redacted]" {
		t.Errorf("String is %q", got)
	}
	if got, _ := json.Marshal(secret); string(got) != `"[redacted]"` {
		t.Errorf("JSON is %s", got)
	}
}

// shows fails when text holds the canary, plain or in one of the forms in which bytes are printed.
func shows(t *testing.T, what, text, canary string) {
	t.Helper()
	decimal := strings.Trim(fmt.Sprint([]byte(canary)), "[]")
	literal := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", []byte(canary)), "[]byte{"), "}")
	for _, form := range []string{
		canary, hex.EncodeToString([]byte(canary)), strings.ToUpper(hex.EncodeToString([]byte(canary))),
		base64.StdEncoding.EncodeToString([]byte(canary)), decimal, literal, canary[:6],
		fmt.Sprintf("% x", canary), fmt.Sprintf("%08b", []byte(canary[:4])),
	} {
		if strings.Contains(text, form) {
			t.Errorf("%s shows the secret", what)
		}
	}
}
