package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/app"
	"github.com/weirhq/weir/app/devstack/devstacktest"
	"github.com/weirhq/weir/inbox"
)

func TestEventsEraseAndHold(t *testing.T) {
	t.Parallel()
	dsn := devstacktest.EmptyDSN(t)
	s := newSite(t, dsn, "")
	if r := weir(t, s.env, "migrate", "up"); r.code != 0 {
		t.Fatalf("migrate up: %+v", r)
	}
	id := s.store(t, dsn)
	step := func(want string, code int, args ...string) {
		t.Helper()
		r := weir(t, s.env, append([]string{"events"}, args...)...)
		if r.code != code || !strings.Contains(r.out+r.stderr, want) {
			t.Errorf("events %v: %+v, want %q", args, r, want)
		}
	}
	why := []string{"--apply", "--reason", "case 7"}
	step("name an event's inbox id or --endpoint", 2, "hold")
	step("plan: nothing of it would be deleted", 0, "hold", "--endpoint", "stripe")
	step("held: nothing of it is deleted", 0, append([]string{"hold", "--endpoint", "stripe"}, why...)...)
	step("it is held already", 0, append([]string{"hold", "--endpoint", "stripe"}, why...)...)
	step("endpoint stripe  since ", 0, "holds")
	step("there is no event", 1, append([]string{"hold", uuid.NewString()}, why...)...)
	step("keep: a legal hold covers it", 1, append([]string{"erase", id, "--unfinished"}, why...)...)
	step("released", 0, append([]string{"release", "--endpoint", "stripe"}, why...)...)
	step("it is not held", 0, append([]string{"release", "--endpoint", "stripe"}, why...)...)
	step("nothing is held", 0, "holds")
	step("say what to erase", 2, "erase")
	step("--apply needs --reason", 2, "erase", id, "--apply")
	step("is not finished", 1, "erase", id)
	step("plan: the payload of 1 events", 0, "erase", id, "--unfinished")
	step("the payload of 1 events is erased", 0, append([]string{"erase", "--object", "obj_1", "--endpoint", "stripe", "--unfinished"}, why...)...)
	step("nothing is stored any more", 0, "erase", id, "--unfinished")
	step("erase by ", 0, "show", id)
}

// store accepts one event without a listener and returns its inbox id.
func (s site) store(t *testing.T, dsn string) string {
	t.Helper()
	cfg, err := app.LoadWith(s.config, func(c *app.Config) { c.Database.URL = dsn })
	if err != nil {
		t.Fatal(err)
	}
	store, err := app.OpenStore(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(t.Context())
	got, err := store.Accept(t.Context(), inbox.Receipt{Provider: "stripe", EndpointID: "stripe", ReceivedAt: time.Now(), Body: []byte("{}"),
		MatchedSecretVersion: "v1", Events: []inbox.Event{{ProviderEventID: "evt_1", Type: "invoice.paid", ObjectID: "obj_1"}}})
	if err != nil {
		t.Fatal(err)
	}
	return got[0].InboxID.String()
}
