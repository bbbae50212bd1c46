package app

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

const testThreshold = 64 << 10

// bucket gives cfg a bucket of its own and returns its folder.
func bucket(t *testing.T, cfg *Config, server *devstacktest.S3) string {
	t.Helper()
	dir := folder(t)
	cfg.Payload = Payload{
		ObjectThreshold: testThreshold, ObjectTimeout: 2 * time.Second,
		ObjectStore:     "s3://weir/payloads?path_style=true&endpoint=http://" + server.Addr(),
		ObjectAccessKey: write(t, dir, "access", devstacktest.S3AccessKey+"\n"), ObjectSecretKey: write(t, dir, "secret", devstacktest.S3SecretKey+"\n"),
	}
	return filepath.Join(server.Bucket("weir"), "payloads")
}

// signedLarge makes a signed sample of stripe that is large and does not compress well.
func signedLarge(t *testing.T, seq, size int) (id string, h adapters.Headers, body []byte) {
	t.Helper()
	const typ = "payment_intent.succeeded"
	a, _ := adapters.Lookup("stripe")
	at := time.Now()
	id, body, err := a.(adapters.Sampler).Sample(typ, seq, at)
	if err != nil {
		t.Fatal(err)
	}
	padding := make([]byte, size/2)
	_, _ = rand.Read(padding)
	body = []byte(`{"padding":"` + hex.EncodeToString(padding) + `",` + strings.TrimPrefix(string(body), "{"))
	if h, err = a.(adapters.Signer).Sign(id, typ, body, adapters.Secret{Version: "v1", Value: []byte(testSecrets["stripe"])}, at); err != nil {
		t.Fatal(err)
	}
	return id, h, body
}

// objectsIn are the payloads' objects in a store's folder.
func objectsIn(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "20*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestObjects_FromRequestToHandler(t *testing.T) {
	t.Parallel()
	server := devstacktest.S3Server(t)
	dsn := devstacktest.DSN(t)
	cfg := testConfig(t, dsn, "")
	dir := bucket(t, &cfg, server)
	registry, conn := recorder(t, dsn)
	a := start(t, cfg, Options{Registry: registry})

	id, h, body := signedLarge(t, 1, 300<<10)
	if status := a.post(t, "stripe", h, body); status != 200 {
		t.Fatalf("status %d", status)
	}
	a.waitStatus(t, "stripe", id, "PROCESSED")
	var seen []byte
	if err := conn.QueryRow(t.Context(), "select body from seen where event_id = $1", id).Scan(&seen); err != nil || string(seen) != string(body) {
		t.Errorf("the handler saw %d bytes of %d: %v", len(seen), len(body), err)
	}
	if found := objectsIn(t, dir); len(found) != 1 {
		t.Errorf("objects: %v", found)
	}
	// The provider sends it again: nothing more is kept.
	if status := a.post(t, "stripe", h, body); status != 200 || len(objectsIn(t, dir)) != 1 {
		t.Errorf("again: %d, %v", status, objectsIn(t, dir))
	}

	server.Stop()
	late, lateHead, lateBody := signedLarge(t, 2, 300<<10)
	if status := a.post(t, "stripe", lateHead, lateBody); status != 503 {
		t.Errorf("without the store: %d", status)
	}
	if _, metrics := a.get(t, "/metrics"); !strings.Contains(metrics, `cause="object_store"`) || !strings.Contains(metrics, `weir_object_errors_total{op="put"} 1`) {
		t.Error("the metrics do not name the store")
	}
	small, smallHead, smallBody := signed(t, "stripe", "payment_intent.succeeded", 3, testSecrets["stripe"])
	if status := a.post(t, "stripe", smallHead, smallBody); status != 200 {
		t.Errorf("a small one without the store: %d", status)
	}
	a.waitStatus(t, "stripe", small, "PROCESSED")
	rows, err := a.Store().Events(t.Context(), inbox.EventFilter{ProviderEventID: late})
	if err != nil || len(rows) != 0 {
		t.Errorf("the refused event has left %v: %v", rows, err)
	}
	server.Start()
	if status := a.post(t, "stripe", lateHead, lateBody); status != 200 {
		t.Errorf("after the outage: %d", status)
	}
	a.waitStatus(t, "stripe", late, "PROCESSED")

	row := a.waitStatus(t, "stripe", id, "PROCESSED")
	if _, err := a.Store().Erase(t.Context(), inbox.EraseRequest{InboxIDs: []uuid.UUID{row.InboxID}, Apply: true, Operator: "ann", Reason: "asked"}); err != nil {
		t.Fatal(err)
	}
	if found := objectsIn(t, dir); len(found) != 1 {
		t.Errorf("after the erasure: %v", found)
	}
	done, err := a.Store().ExpirePayloads(t.Context(), inbox.Retention{Now: time.Now().AddDate(0, 0, 32)})
	if err != nil || done.Objects != 1 || len(objectsIn(t, dir)) != 0 {
		t.Errorf("after retention: %+v, %v, %v", done, objectsIn(t, dir), err)
	}
}

// An outage while events are processed costs time alone; an object that is gone makes its event FAILED with the reason.
func TestObjects_ProcessingWithoutTheObject(t *testing.T) {
	t.Parallel()
	server := devstacktest.S3Server(t)
	dsn := devstacktest.DSN(t)
	cfg := testConfig(t, dsn, "")
	dir := bucket(t, &cfg, server)
	registry, _ := recorder(t, dsn)
	// The subscriptions are there, and nobody processes yet.
	opened, err := New(t.Context(), cfg, Options{Registry: registry})
	if err == nil {
		err = opened.Close(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	edge := cfg
	edge.Roles = []Role{RoleIngress}
	door := start(t, edge, Options{Registry: registry})
	lost, lostHead, lostBody := signedLarge(t, 1, 100<<10)
	if status := door.post(t, "stripe", lostHead, lostBody); status != 200 {
		t.Fatalf("status %d", status)
	}
	for _, path := range objectsIn(t, dir) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	kept, keptHead, keptBody := signedLarge(t, 2, 100<<10)
	if status := door.post(t, "stripe", keptHead, keptBody); status != 200 {
		t.Fatalf("status %d", status)
	}
	server.Stop()
	a := start(t, cfg, Options{Registry: registry}) // a store that does not answer keeps nobody from starting
	waiting := func(id string) inbox.DeliveryRow {
		t.Helper()
		row := a.waitStatus(t, "stripe", id, "PENDING")
		return delivery(t, a, row.InboxID)
	}
	eventually(t, "both wait for the store", func() bool {
		return strings.Contains(lastError(waiting(lost)), "object store") && strings.Contains(lastError(waiting(kept)), "object store")
	})
	server.Start()
	a.waitStatus(t, "stripe", kept, "PROCESSED")
	row := a.waitStatus(t, "stripe", lost, "FAILED")
	if d := delivery(t, a, row.InboxID); !strings.Contains(lastError(d), "object store does not have it") || d.AttemptCount != 1 {
		t.Errorf("%d attempts, %q", d.AttemptCount, lastError(d))
	}
}

// delivery returns the one delivery of an event.
func delivery(t *testing.T, a *running, id uuid.UUID) inbox.DeliveryRow {
	t.Helper()
	detail, err := a.Store().Event(t.Context(), id)
	if err != nil || len(detail.Deliveries) != 1 {
		t.Fatalf("deliveries %v: %v", detail.Deliveries, err)
	}
	return detail.Deliveries[0]
}

func lastError(d inbox.DeliveryRow) string {
	if d.LastError == nil {
		return ""
	}
	return *d.LastError
}

func TestObjects_AtTheStart(t *testing.T) {
	t.Parallel()
	server := devstacktest.S3Server(t)
	dsn := devstacktest.DSN(t)
	cfg := testConfig(t, dsn, "")
	bucket(t, &cfg, server)
	begin := func(cfg Config) error {
		t.Helper()
		a, err := New(t.Context(), cfg, Options{})
		if err == nil {
			err = a.Close(context.Background())
		}
		return err
	}
	if err := begin(cfg); err != nil {
		t.Fatal(err)
	}
	absent, refused, foreign := cfg, cfg, testConfig(t, devstacktest.DSN(t), "")
	absent.Payload.ObjectStore = strings.Replace(cfg.Payload.ObjectStore, "s3://weir", "s3://absent", 1)
	refused.Payload.ObjectSecretKey = write(t, folder(t), "secret", "canary-of-a-key")
	foreign.Payload = cfg.Payload
	for want, faulty := range map[string]Config{
		"payload.object_store: there is no bucket absent":                  absent,
		"refuses the credentials for bucket weir (SignatureDoesNotMatch);": refused,
		"holds the payloads of another database; give each":                foreign,
	} {
		err := begin(faulty)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "\n") {
			t.Errorf("err = %v, want %q", err, want)
		}
	}
}

func TestConfig_Payload(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	write(t, dir, "key", "canary-of-a-key\n")
	write(t, dir, "empty", "\n")
	const remote = "object_store: 's3://bucket?region=eu-west-1', "
	for text, want := range map[string][]string{
		"payload: {object_threshold: 1000, " + remote + "object_access_key: key, object_secret_key: key}": nil,
		"payload: {object_threshold: 1000, object_store: file:///var/lib/weir}":                           nil,
		"payload: {object_threshold: -1}":   {"payload.object_threshold: is negative"},
		"payload: {object_threshold: 1000}": {"payload.object_store: there is no place"},
		"payload: {object_timeout: -1s}":    {"payload.object_timeout: is negative"},
		"payload: {object_orphan_age: 59m}": {"payload.object_orphan_age: is too short"},
		"payload: {object_store: 's3://k:canary@b?region=x', object_access_key: key, object_secret_key: key}": {"payload.object_store: credentials do not belong"},
		"payload: {" + remote + "object_access_key: none, object_secret_key: empty}": {
			"payload.object_access_key: there is no such file", "payload.object_secret_key: names nothing"},
		"payload: {" + remote + "object_access_key: 'vault:canary', object_secret_key: 'env:WEIR_TEST_UNSET'}": {
			"payload.object_access_key: is neither a file nor env:NAME", "payload.object_secret_key: names nothing"},
	} {
		file := write(t, dir, fmt.Sprintf("weir-%x.yaml", len(text)), "listen: 127.0.0.1:0\n"+text+"\n")
		_, err := LoadWith(file, nil)
		var ce *ConfigError
		var got []string
		if errors.As(err, &ce) {
			for _, f := range ce.Faults {
				if strings.HasPrefix(f.Key, "payload") {
					if f.Remedy == "" || strings.Contains(f.String(), "canary") {
						t.Errorf("%s: %s", text, f)
					}
					got = append(got, f.Key+": "+f.Problem)
				}
			}
		}
		same := len(got) == len(want)
		for i := range min(len(got), len(want)) {
			same = same && strings.HasPrefix(got[i], want[i])
		}
		if !same {
			t.Errorf("%s: %s", text, cmp.Diff(want, got))
		}
	}
}
