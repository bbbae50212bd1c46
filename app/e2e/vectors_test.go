package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/adapterstest"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/app/e2e/e2etest"
	"github.com/weirhq/weir/app/ingress"
	"github.com/weirhq/weir/inbox"
)

// vectorBench is an edge in front of a real inbox. Each vector has an endpoint of its own, and the clock is the
// vector's.
type vectorBench struct {
	store *inbox.Store
	count int
}

func newVectorBench(t *testing.T) *vectorBench {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keyring.json")
	must(t, inbox.CreateKeyring(path))
	keyring, err := inbox.LoadKeyring(path)
	must(t, err)
	b := &vectorBench{}
	b.store, err = inbox.Open(t.Context(), inbox.Config{DSN: devstacktest.DSN(t), Keyring: keyring})
	must(t, err)
	t.Cleanup(func() { _ = b.store.Close(context.Background()) })
	var wishes []inbox.Subscription
	for _, a := range adapters.All() {
		provider := a.Describe().Provider
		wishes = append(wishes, inbox.Subscription{Processor: provider, Provider: provider, Endpoint: "*", Type: "*"})
	}
	must(t, b.store.SyncSubscriptions(t.Context(), wishes))
	return b
}

// serve opens an edge that knows one vector under the given endpoint, and returns its address.
func (b *vectorBench) serve(t *testing.T, a adapters.Adapter, v adapterstest.Vector, endpoint string) string {
	t.Helper()
	ep := &ingress.Endpoint{ID: endpoint, Adapter: a, PublicURL: v.Request.URL,
		Secrets: func() (*adapters.Endpoint, error) { return &v.Endpoint, nil }}
	server, err := ingress.New(ingress.Config{
		Endpoints:      func(id string) (*ingress.Endpoint, bool) { return ep, id == ep.ID },
		Accept:         b.store.Accept,
		AllowPlainHTTP: true,
		Clock:          func() time.Time { return v.Request.At },
	})
	must(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), e2etest.Patience)
		defer cancel()
		if err := errors.Join(server.Shutdown(ctx), <-served); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return ln.Addr().String()
}

// send writes the vector's request as it stands, which no HTTP client would do, and returns the status.
func send(t *testing.T, addr, endpoint string, v adapterstest.Vector) int {
	t.Helper()
	target := "/hooks/" + endpoint
	if _, query, ok := strings.Cut(v.Request.URL, "?"); ok {
		target += "?" + query
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: weir.test\r\nConnection: close\r\n", v.Request.Method, target)
	for _, h := range v.Request.Headers {
		fmt.Fprintf(&b, "%s: %s\r\n", h.Name, h.Value)
	}
	if len(v.Request.Body) > 0 || v.Request.Method == http.MethodPost {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(v.Request.Body))
	}
	b.WriteString("\r\n")
	b.Write(v.Request.Body)
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(e2etest.Patience)))
	_, err = conn.Write(b.Bytes())
	must(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: v.Request.Method})
	must(t, err)
	return resp.StatusCode
}

func TestVectors_OfEveryProviderAreStoredByteByByte(t *testing.T) {
	t.Parallel()
	bench := newVectorBench(t)
	for _, a := range adapters.All() {
		provider := a.Describe().Provider
		vectors, err := adapterstest.Vectors(provider)
		must(t, err)
		t.Run(provider, func(t *testing.T) {
			for _, v := range vectors {
				t.Run(v.Name, func(t *testing.T) { bench.run(t, a, v) })
			}
		})
	}
}

// stored is what stands in the inbox of one vector.
type stored struct {
	ID, Type, Version, Body string
}

// run sends the vector and compares what is stored with what the vector demands.
func (b *vectorBench) run(t *testing.T, a adapters.Adapter, v adapterstest.Vector) {
	b.count++
	endpoint := fmt.Sprintf("vector-%d", b.count)
	status := send(t, b.serve(t, a, v, endpoint), endpoint, v)
	if r := v.Want.Response; r != nil && r.Status != 0 {
		if status != r.Status {
			t.Errorf("status %d, want %d", status, r.Status)
		}
	} else if ok := v.Want.Cause == ""; ok != (status/100 == 2) {
		t.Errorf("status %d, want %q", status, v.Want.Result)
	}
	var want []stored
	for _, ev := range v.Want.Events {
		if ev.CoalesceKey != "" {
			ev.ID = "" // the inbox gives a level trigger its id
		}
		want = append(want, stored{ID: ev.ID, Type: ev.Type, Version: v.Want.MatchedVersion, Body: string(v.Request.Body)})
	}
	got := b.stored(t, v, endpoint)
	for i := range min(len(want), len(got)) {
		if want[i].Type == "" { // the vector does not say
			got[i].Type = ""
		}
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.SortSlices(func(a, b stored) bool { return a.ID < b.ID })); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

// stored takes the vector's events out of the inbox as a worker does.
func (b *vectorBench) stored(t *testing.T, v adapterstest.Vector, endpoint string) []stored {
	t.Helper()
	deliveries, err := b.store.LeaseDue(t.Context(), v.Provider, 1000, time.Hour)
	must(t, err)
	var got []stored
	for i := range deliveries {
		d := &deliveries[i]
		body, _, err := b.store.OpenPayload(t.Context(), d)
		must(t, err)
		rows, err := b.store.Events(t.Context(), inbox.EventFilter{EndpointID: endpoint, ProviderEventID: d.ProviderEventID})
		must(t, err)
		if len(rows) != 1 || d.EndpointID != endpoint {
			t.Fatalf("%d rows of %s at endpoint %s, want 1 at %s", len(rows), d.ProviderEventID, d.EndpointID, endpoint)
		}
		s := stored{ID: d.ProviderEventID, Type: d.EventType, Version: rows[0].MatchedSecretVersion, Body: string(body)}
		if v.Want.MatchedVersion == "" {
			s.Version = ""
		}
		if strings.HasPrefix(s.ID, "coalesced:") {
			s.ID = ""
		}
		got = append(got, s)
	}
	return got
}
