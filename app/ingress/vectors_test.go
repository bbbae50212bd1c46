package ingress

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weirhq/weir/adapters"
	"github.com/weirhq/weir/adapters/adapterstest"
)

// Every vector of the providers that weir brings along, over HTTP: the answer, the events and the stored bytes.
func TestServer_ProviderVectors(t *testing.T) {
	t.Parallel()
	for _, a := range adapters.All() {
		list, err := adapterstest.Vectors(a.Describe().Provider)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			for _, framing := range []string{"sized", "chunked"} {
				t.Run(v.Provider+"/"+v.Name+"/"+framing, func(t *testing.T) {
					t.Parallel()
					runVector(t, a, v, framing)
				})
			}
		}
	}
}

func runVector(t *testing.T, a adapters.Adapter, v adapterstest.Vector, framing string) {
	e := start(t, func(c *Config, ep *Endpoint) {
		c.Clock = func() time.Time { return v.Request.At }
		ep.Adapter, ep.PublicURL = a, v.Request.URL
		ep.Secrets = func() (*adapters.Endpoint, error) { return &v.Endpoint, nil }
	})
	resp := e.dial().send(vectorRequest(v, framing)).must()
	info := <-e.infos
	// Where the vector demands no answer of its own, the adapter may choose among the 2xx.
	want := vectorStatus(v)
	if free := v.Want.Response == nil && want == 200 && resp.StatusCode/100 == 2; !free && resp.StatusCode != want {
		t.Fatalf("status %d (%s/%s), want %d (%s)", resp.StatusCode, info.Outcome, info.Cause, want, v.Want.Result)
	}
	got := e.store.all()
	switch {
	case v.Want.Cause != "":
		if info.Cause != string(v.Want.Cause) || len(got) != 0 {
			t.Errorf("cause %s, %d stored; want %s and none", info.Cause, len(got), v.Want.Cause)
		}
		return
	case v.Want.Handshake || len(v.Want.Events) == 0:
		if info.Outcome != Handshake || len(got) != 0 {
			t.Errorf("outcome %s, %d stored; want a handshake and none", info.Outcome, len(got))
		}
		return
	}
	if len(got) != 1 || string(got[0].Body) != string(v.Request.Body) {
		t.Fatal("the stored bytes are not those sent")
	}
	var events []adapterstest.WantEvent
	for _, ev := range got[0].Events {
		if v.Want.TypeOpen {
			ev.Type = ""
		}
		events = append(events, adapterstest.WantEvent{ID: ev.ProviderEventID, Type: ev.Type, CoalesceKey: ev.CoalesceKey})
	}
	if d := cmp.Diff(v.Want.Events, events); d != "" {
		t.Error(d)
	}
	if want := v.Want.MatchedVersion; want != "" && got[0].MatchedSecretVersion != want {
		t.Errorf("matched %q, want %q", got[0].MatchedSecretVersion, want)
	}
}

func vectorRequest(v adapterstest.Vector, framing string) string {
	var b strings.Builder
	b.WriteString(v.Request.Method + " /hooks/in HTTP/1.1\r\nHost: weir.test\r\n")
	for _, h := range v.Request.Headers {
		b.WriteString(h.Name + ": " + h.Value + "\r\n")
	}
	switch body := string(v.Request.Body); {
	case body == "" && v.Request.Method != "POST":
		b.WriteString("\r\n")
	case framing == "sized":
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
	default:
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n" + chunked(body, 100))
	}
	return b.String()
}

func vectorStatus(v adapterstest.Vector) int {
	switch r := v.Want.Response; {
	case r != nil && r.Status != 0:
		return r.Status
	case v.Want.Cause != "":
		return rules[cause(v.Want.Cause)].status
	default:
		return 200
	}
}
