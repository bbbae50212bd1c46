package objects_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
	"github.com/weirhq/weir/inbox/objects"
)

func TestMain(m *testing.M) { os.Exit(devstacktest.Main(m)) }

func testKeys() (objects.Credentials, error) {
	return objects.Credentials{AccessKey: devstacktest.S3AccessKey, SecretKey: devstacktest.S3SecretKey}, nil
}

func open(t *testing.T, url string) objects.Store {
	t.Helper()
	s, err := objects.New(objects.Config{URL: url, Credentials: testKeys})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func s3URL(server *devstacktest.S3, bucket string) string {
	return "s3://" + bucket + "?endpoint=http://" + server.Addr() + "&path_style=true"
}

// kinds are the stores to which the same rules apply, each fresh and checked.
func kinds(t *testing.T) map[string]objects.Store {
	server := devstacktest.S3Server(t)
	server.Bucket("plain")
	server.Bucket("shared")
	all := map[string]objects.Store{
		"bucket":             open(t, s3URL(server, "plain")),
		"bucket with prefix": open(t, strings.Replace(s3URL(server, "shared"), "shared?", "shared/weir/prod?", 1)),
		"folder":             open(t, "file://"+filepath.Join(t.TempDir(), "objects")),
	}
	for name, s := range all {
		if err := s.Check(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	// What others keep beside the prefix is none of ours.
	if err := open(t, s3URL(server, "shared")).Put(t.Context(), "2026-01-01/foreign", []byte("x")); err != nil {
		t.Fatal(err)
	}
	return all
}

func listed(t *testing.T, s objects.Store, after string, limit int) (keys []string) {
	t.Helper()
	found, err := s.List(t.Context(), after, limit)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range found {
		keys = append(keys, o.Key)
		if age := time.Since(o.Modified); age > time.Hour || age < -time.Hour {
			t.Errorf("%s was modified %v ago", o.Key, age)
		}
	}
	return keys
}

func TestStore_Conformance(t *testing.T) {
	t.Parallel()
	for name, s := range kinds(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			if keys := listed(t, s, "", 10); len(keys) != 0 {
				t.Errorf("a fresh store has %v", keys)
			}
			if _, err := s.Get(ctx, "2026-01-01/none", 10); !errors.Is(err, inbox.ErrNoObject) {
				t.Errorf("get of nothing: %v", err)
			}
			if err := s.Delete(ctx, []string{"2026-01-01/none", "2026-01-01/none-either"}); err != nil {
				t.Errorf("delete of nothing: %v", err)
			}
			content := make([]byte, 3<<20)
			_, _ = rand.Read(content)
			var keys []string
			for day := 1; day <= 3; day++ {
				for n := range 4 {
					keys = append(keys, fmt.Sprintf("2026-01-%02d/object-%d", day, n))
				}
			}
			var wg sync.WaitGroup
			for i, key := range keys {
				wg.Go(func() {
					if err := s.Put(ctx, key, content[:i<<18]); err != nil {
						t.Errorf("put %s: %v", key, err)
					}
				})
			}
			wg.Wait()
			for i, key := range keys {
				got, err := s.Get(ctx, key, int64(len(content)))
				if err != nil || !bytes.Equal(got, content[:i<<18]) {
					t.Errorf("get %s: %d bytes, %v", key, len(got), err)
				}
			}
			if got, err := s.Get(ctx, keys[5], 1000); err != nil || !bytes.Equal(got, content[:1000]) {
				t.Errorf("get with a limit: %d bytes, %v", len(got), err)
			}
			if err := s.Put(ctx, keys[0], []byte("again")); err != nil {
				t.Error(err)
			}
			if got, err := s.Get(ctx, keys[0], 100); err != nil || string(got) != "again" {
				t.Errorf("a replaced object: %q, %v", got, err)
			}
			checkListing(t, s, keys)

			if err := s.Delete(ctx, append([]string{"2026-01-02/none"}, keys[4:8]...)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(append(append([]string(nil), keys[:4]...), keys[8:]...), listed(t, s, "", 100)); diff != "" {
				t.Errorf("after deleting a day: %s", diff)
			}
			cancelled, cancel := context.WithCancel(ctx)
			cancel()
			if err := s.Put(cancelled, "2026-01-09/late", []byte("x")); err == nil {
				t.Error("a put whose context is over succeeds")
			}
		})
	}
}

func checkListing(t *testing.T, s objects.Store, keys []string) {
	t.Helper()
	var paged []string
	for after := ""; ; {
		page := listed(t, s, after, 5)
		if paged = append(paged, page...); len(page) < 5 {
			break
		}
		after = page[len(page)-1]
	}
	if diff := cmp.Diff(keys, paged); diff != "" {
		t.Errorf("pages: %s", diff)
	}
	if diff := cmp.Diff(keys[8:], listed(t, s, "2026-01-02/~", 100)); diff != "" {
		t.Errorf("behind a day: %s", diff)
	}
	if diff := cmp.Diff(keys[2:3], listed(t, s, keys[1], 1)); diff != "" {
		t.Errorf("one: %s", diff)
	}
}

func TestFolder_FilesArePrivateAndWhole(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "objects")
	s := open(t, "file://"+dir)
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "2026-01-01/a", []byte("content")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{"": 0o700, "2026-01-01": 0o700, "2026-01-01/a": 0o600} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v", path, info.Mode(), err)
		}
	}
	// What a writer that died has left is no object, and goes in time.
	young, old := filepath.Join(dir, ".tmp-young"), filepath.Join(dir, ".tmp-old")
	for _, path := range []string{young, old} {
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(old, time.Now(), time.Now().Add(-48*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"2026-01-01/a"}, listed(t, s, "", 10)); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(young); err != nil {
		t.Error("a file that is being written was removed")
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("an old half file stays")
	}
	// No key leads out of the folder.
	for _, key := range []string{"../outside", "2026-01-01/../../outside", "/etc/outside"} {
		if err := s.Put(t.Context(), key, []byte("x")); err == nil {
			t.Errorf("put %s succeeds", key)
		}
	}
	if err := s.Delete(t.Context(), []string{"2026-01-01/a"}); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "2*")); err != nil || len(left) != 0 {
		t.Errorf("an empty day stays: %v, %v", left, err)
	}
}

func TestCheck_NamesWhatToCorrect(t *testing.T) {
	t.Parallel()
	server := devstacktest.S3Server(t)
	server.Bucket("there")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	redirect := httptest.NewServer(http.RedirectHandler("http://192.0.2.1/", http.StatusTemporaryRedirect))
	t.Cleanup(redirect.Close)
	untrusted := httptest.NewTLSServer(http.NotFoundHandler())
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(untrusted.Close)
	wrong := func() (objects.Credentials, error) {
		return objects.Credentials{AccessKey: devstacktest.S3AccessKey, SecretKey: "canary-of-a-secret"}, nil
	}
	unknown := func() (objects.Credentials, error) {
		return objects.Credentials{AccessKey: "nobody", SecretKey: "canary-of-a-secret"}, nil
	}
	for name, tc := range map[string]struct {
		url   string
		creds func() (objects.Credentials, error)
		want  string
	}{
		"no bucket":             {s3URL(server, "absent"), testKeys, "there is no bucket absent at " + server.Addr() + "; create it"},
		"a wrong secret key":    {s3URL(server, "there"), wrong, "refuses the credentials for bucket there (SignatureDoesNotMatch)"},
		"an unknown access key": {s3URL(server, "there"), unknown, "bucket there (XAdminUserNotFound)"},
		"HTTPS where there is none": {"s3://there?path_style=true&endpoint=https://" + server.Addr(), testKeys,
			"does not speak HTTPS; correct the endpoint"},
		"a certificate of nobody": {"s3://there?path_style=true&endpoint=" + untrusted.URL, testKeys, "is not trusted"},
		"a redirect":              {"s3://there?path_style=true&endpoint=" + redirect.URL, testKeys, "is not at"},
		"a file for a folder":     {"file://" + file, nil, "folder " + file + " cannot be used (not a directory)"},
		"no folder above":         {"file:///none/such/folder", nil, "folder /none/such/folder cannot be used (no such file or directory); correct the path"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := objects.New(objects.Config{URL: tc.url, Credentials: tc.creds})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			err = s.Check(ctx)
			var f *objects.Fault
			if !errors.As(err, &f) || !strings.Contains(err.Error(), tc.want) || strings.ContainsAny(err.Error(), "\n") {
				t.Fatalf("err = %v, want a fault with %q", err, tc.want)
			}
			if strings.Contains(err.Error(), "canary") {
				t.Error("the fault holds the key")
			}
		})
	}
}

// A server that is away or hangs is no fault of the config, and no call outlasts its context.
func TestBucket_Outage(t *testing.T) {
	t.Parallel()
	server := devstacktest.S3Server(t)
	server.Bucket("there")
	s := open(t, s3URL(server, "there"))
	if err := s.Put(t.Context(), "2026-01-01/a", []byte("content")); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(context.Context) error{
		"put":    func(ctx context.Context) error { return s.Put(ctx, "2026-01-01/b", make([]byte, 1<<20)) },
		"get":    func(ctx context.Context) error { _, err := s.Get(ctx, "2026-01-01/a", 100); return err },
		"delete": func(ctx context.Context) error { return s.Delete(ctx, []string{"2026-01-01/a"}) },
		"list":   func(ctx context.Context) error { _, err := s.List(ctx, "", 10); return err },
		"check":  s.Check,
	}
	all := func(state string) {
		t.Helper()
		for name, call := range calls {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			err := call(ctx)
			cancel()
			var f *objects.Fault
			if err == nil || errors.Is(err, inbox.ErrNoObject) || errors.As(err, &f) {
				t.Errorf("%s while the server %s: %v", name, state, err)
			}
			if err != nil && strings.Contains(err.Error(), "2026-01-01") {
				t.Errorf("%s: the error quotes the request: %v", name, err)
			}
		}
	}
	server.Pause()
	all("hangs")
	server.Resume()
	server.Stop()
	all("is away")
	server.Start()
	if got, err := s.Get(t.Context(), "2026-01-01/a", 100); err != nil && !errors.Is(err, inbox.ErrNoObject) {
		t.Errorf("after the restart: %q, %v", got, err)
	}
}

func TestNew_Faults(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                                  "is not the address of an object store",
		"/var/lib/objects":                  "is not the address of an object store",
		"https://s3.example/bucket":         "is not the address of an object store",
		"file:objects":                      "is not the address of an object store",
		"file://objects/x":                  "names no folder by its whole path",
		"file:///x?region=y":                "names no folder by its whole path",
		"s3://?region=eu-west-1":            "names no bucket",
		"s3://B_UCKET?region=eu-west-1":     "names no bucket",
		"s3://canary:secret@b?region=x":     "credentials do not belong into the address",
		"s3://bucket?region=x&secret_key=y": "unknown option",
		"s3://bucket":                       "neither region nor endpoint",
		"s3://bucket?endpoint=s3.example":   "its endpoint is not an https address",
		"s3://bucket?endpoint=https://canary:x@s3.example": "its endpoint is not an https address",
		"s3://bucket?endpoint=https://s3.example/path":     "its endpoint is not an https address",
		"s3://bucket?region=x&path_style=maybe":            "neither true nor false",
	} {
		_, err := objects.New(objects.Config{URL: url, Credentials: testKeys})
		var f *objects.Fault
		if !errors.As(err, &f) || f.Remedy == "" || !strings.Contains(f.Problem, want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v, want %q", url, err, want)
		}
	}
	if _, err := objects.New(objects.Config{URL: "s3://bucket?region=x"}); err == nil {
		t.Error("a bucket without credentials")
	}
	s := open(t, "s3://bucket/a/b?region=eu-west-1")
	if want := "bucket bucket/a/b/ at https://s3.eu-west-1.amazonaws.com"; s.String() != want {
		t.Errorf("%s, want %s", s, want)
	}
}

func TestCredentials_Print(t *testing.T) {
	t.Parallel()
	c := objects.Credentials{AccessKey: "canary-a", SecretKey: "canary-s", SessionToken: "canary-t"}
	asJSON, err := json.Marshal(map[string]any{"c": c, "p": &c})
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []string{
		fmt.Sprintf("%v %+v %#v %s %q %x %d", c, c, c, c, c, c, c), fmt.Sprintf("%+v", &c),
		fmt.Sprintf("%+v", struct{ C objects.Credentials }{c}), fmt.Errorf("x: %v", c).Error(), string(asJSON),
	} {
		if strings.Contains(got, "canary") || strings.Contains(got, "63616e617279") || !strings.Contains(got, "[redacted]") {
			t.Errorf("printed: %s", got)
		}
	}
}
