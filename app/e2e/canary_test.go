package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"

	"github.com/weirhq/weir/app/e2e/e2etest"
)

// No secret, no payload and no signature can be read anywhere but where the operator keeps them, whatever goes wrong.
func TestCanary_NothingIsReadableInFilesLogsAndMetrics(t *testing.T) {
	t.Parallel()
	s := newCanarySite(t)
	child := s.start("weir-1.log")
	got := s.deliver()
	for _, p := range s.providers {
		if got.accepted(p.name) == 0 {
			t.Errorf("no request of %s was accepted: %v", p.name, got.n)
		}
	}
	s.misuse()
	e2etest.Eventually(t, "every delivery ends", func() bool { return s.count("select count(*) from weir.webhook_outbox where status = 'PENDING'") == 0 })
	failed := s.count("select count(*) from weir.webhook_outbox where status = 'FAILED'")
	if failed == 0 {
		t.Error("no handler has failed")
	}
	s.commands()
	for _, path := range []string{"/metrics", "/readyz", "/livez", "/"} {
		if resp, err := http.Get("http://" + s.admin + path); err == nil {
			text, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			s.keep("admin"+path, text)
		}
	}
	s.stop(child, syscall.SIGTERM)
	// A second process dies with all its stacks printed, while requests are on their way.
	child = s.start("weir-2.log")
	for _, p := range s.providers {
		for n := range 3 {
			go s.post(http.DefaultClient, &answers{n: map[string]int{}}, p, canaryPayloads+n, s.canaries.Text(0), nil)
		}
	}
	s.stop(child, syscall.SIGQUIT)
	s.settle()

	needles := s.keys()
	needles["canary"] = s.canaries.Needle()
	started := time.Now()
	found, size := s.scan(needles)
	t.Logf("%d requests by %d providers, %d failed deliveries, %d secrets and payloads: searched %d MB for %d needles in %v",
		canaryPayloads, len(s.providers), failed, s.drawn, size>>20, len(needles), time.Since(started))
	for i, hit := range found {
		if i == 20 {
			t.Errorf("and %d more", len(found)-i)
			break
		}
		t.Error(hit)
	}
	s.plant(needles)
	s.settle()
	found, _ = s.scan(needles)
	all := strings.Join(found, "\n")
	for place := range s.places() {
		for name, needle := range needles {
			for form := range e2etest.Forms(needle) {
				if place == "Postgres" && name != "canary" {
					continue
				}
				if !strings.Contains(all, ": "+form+" of "+name) || !strings.Contains(all, place+": ") {
					t.Errorf("a planted %s of %s was not found in %s", form, name, place)
				}
			}
		}
	}
	for _, file := range []string{"pg_wal", "postgres.log", "dump.rdb", "appendonly", "weir-1.log", "admin"} {
		if !strings.Contains(all, file) {
			t.Errorf("a planted text was not found in %s", file)
		}
	}
}

// keys are the key-encryption keys and the data keys in clear.
func (s *canarySite) keys() map[string][]byte {
	text, err := os.ReadFile(filepath.Join(s.conf, "keyring.json"))
	must(s.t, err)
	var ring struct {
		Key []struct {
			KeyData struct{ Value string }
		}
	}
	must(s.t, json.Unmarshal(text, &ring))
	needles := map[string][]byte{}
	for i, k := range ring.Key {
		raw, err := base64.StdEncoding.DecodeString(k.KeyData.Value)
		must(s.t, err)
		needles[fmt.Sprintf("key-encryption key %d", i)] = raw[len(raw)-32:] // the last field of Tink's message
	}
	handle, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(text)))
	must(s.t, err)
	primitive, err := aead.New(handle)
	must(s.t, err)
	rows, err := s.db.Query(s.t.Context(), "select day::text, wrapped from weir.data_key")
	must(s.t, err)
	for rows.Next() {
		var day string
		var wrapped []byte
		must(s.t, rows.Scan(&day, &wrapped))
		raw, err := primitive.Decrypt(wrapped, []byte("weir data key "+day))
		must(s.t, err)
		needles["data key of "+day] = raw
	}
	must(s.t, rows.Err())
	return needles
}

// places are the folders to search, by name.
func (s *canarySite) places() map[string]string {
	dir, err := s.redis.ConfigGet(s.t.Context(), "dir").Result()
	must(s.t, err)
	return map[string]string{"Postgres": s.pg.Dir(), "Redis": dir["dir"], "logs": s.logs, "temp": s.temp, "work": s.work}
}

// settle writes everything to the files and takes the metrics and the profiles beside them.
func (s *canarySite) settle() {
	s.t.Helper()
	_, err := s.db.Exec(s.t.Context(), "checkpoint")
	must(s.t, err)
	must(s.t, s.redis.Save(s.t.Context()).Err())
}

func (s *canarySite) scan(needles map[string][]byte) (found []string, bytes int64) {
	s.t.Helper()
	scanner := e2etest.NewScanner(needles)
	for place, dir := range s.places() {
		hits, err := scanner.SearchDir(dir)
		must(s.t, err)
		for _, h := range hits {
			found = append(found, place+": "+h.String())
		}
	}
	return found, scanner.Bytes
}

func (s *canarySite) count(sql string) (n int) {
	s.t.Helper()
	must(s.t, s.db.QueryRow(s.t.Context(), sql).Scan(&n))
	return n
}

// plant puts every form into every kind of place.
func (s *canarySite) plant(needles map[string][]byte) {
	s.t.Helper()
	_, err := s.db.Exec(s.t.Context(), "create table leak (what bytea)")
	must(s.t, err)
	for name, needle := range needles {
		for form, text := range e2etest.Forms(needle) {
			_, err := s.db.Exec(s.t.Context(), "insert into leak values ($1)", text)
			must(s.t, err)
			must(s.t, s.redis.Set(s.t.Context(), name+form, text, 0).Err())
			line := append(append([]byte(`{"message":"`), text...), '"', '}', '\n')
			for _, file := range []string{filepath.Join(s.temp, "planted"), filepath.Join(s.work, "core.planted"), filepath.Join(s.logs, "weir-1.log"), filepath.Join(s.logs, "admin_metrics")} {
				f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
				must(s.t, err)
				_, err = f.Write(line)
				must(s.t, err)
				must(s.t, f.Close())
			}
		}
	}
	_, err = s.db.Exec(s.t.Context(), "select '"+string(s.canaries.Needle())+"', '"+hex.EncodeToString(s.canaries.Needle())+"'")
	must(s.t, err)
}
