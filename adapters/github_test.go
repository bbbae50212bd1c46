package adapters_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/adapters"
)

func TestGitHub_Event(t *testing.T) {
	t.Parallel()
	created := time.Date(2025, 10, 9, 8, 53, 11, 0, time.UTC)
	version := created.Add(time.Minute).UnixMicro()
	const times = `"created_at":"2025-10-09T08:53:11Z","updated_at":"2025-10-09T08:54:11Z"`
	tests := []struct {
		name, event, body string
		want              adapters.Event
		cause             adapters.Cause
	}{
		{"an issue", "issues", `{"action":"opened","issue":{"id":1,` + times + `}}`, adapters.Event{Type: "issues.opened", ObjectID: "issue:1", ObjectVersion: &version, CreatedAt: created}, ""},
		{"the comment on an issue, not the issue", "issue_comment", `{"action":"created","issue":{"id":1},"comment":{"id":2,` + times + `}}`, adapters.Event{Type: "issue_comment.created", ObjectID: "issue_comment:2", ObjectVersion: &version, CreatedAt: created}, ""},
		{"a pull request", "pull_request", `{"action":"closed","pull_request":{"id":9007199254740993,` + times + `}}`, adapters.Event{Type: "pull_request.closed", ObjectID: "pull_request:9007199254740993", ObjectVersion: &version, CreatedAt: created}, ""},
		{"a push has its ref as object and no version", "push", `{"ref":"refs/heads/main","repository":{"id":3,` + times + `}}`, adapters.Event{Type: "push", ObjectID: "ref:3:refs/heads/main"}, ""},
		{"a commit status is its own object", "status", `{"id":4,` + times + `}`, adapters.Event{Type: "status", ObjectID: "status:4", ObjectVersion: &version, CreatedAt: created}, ""},
		{"an object without times", "check_run", `{"action":"created","check_run":{"id":5}}`, adapters.Event{Type: "check_run.created", ObjectID: "check_run:5"}, ""},
		{"an event that is not known", "brand_new", `{"action":"made","brand_new":{"id":6}}`, adapters.Event{Type: "brand_new.made", ObjectID: "brand_new:6"}, ""},
		{"a star has no object", "star", `{"action":"created","repository":{"id":3}}`, adapters.Event{Type: "star.created"}, ""},
		{"no JSON", "ping", `Hello, World!`, adapters.Event{Type: "ping"}, ""},
		{"an array", "ping", `[1]`, adapters.Event{Type: "ping"}, ""},
		{"cut JSON yields nothing of the body", "issues", `{"action":"opened","issue":{"id":1}`, adapters.Event{Type: "issues"}, ""},
		{"an action that is no text", "issues", `{"action":1}`, adapters.Event{Type: "issues"}, ""},
		{"an action with NUL", "issues", `{"action":"\u0000"}`, adapters.Event{}, adapters.MalformedBody},
		{"an action that is not UTF-8", "issues", "{\"action\":\"\xff\"}", adapters.Event{}, adapters.MalformedBody},
		{"an action too long", "issues", `{"action":"` + strings.Repeat("a", 256) + `"}`, adapters.Event{}, adapters.MalformedBody},
		{"an event name too long", strings.Repeat("a", 257), `{}`, adapters.Event{}, adapters.MalformedBody},
		{"an event name like a path", "a/b", `{"a":{"b":{"id":1}}}`, adapters.Event{Type: "a/b", ObjectID: "a/b:1"}, ""},
		{"no event name", "", `{}`, adapters.Event{}, adapters.MalformedBody},
		{"too deep", "issues", strings.Repeat("[", 65) + strings.Repeat("]", 65), adapters.Event{}, adapters.MalformedBody},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := adapters.GitHub{}
			tt.want.ID = "72d3162e"
			checkEvent(t, a, signed(t, a, "72d3162e", tt.event, []byte(tt.body)), tt.want, tt.cause)
		})
	}
}

func TestGitHub_DeliveryID(t *testing.T) {
	t.Parallel()
	tests := []struct {
		id    string
		cause adapters.Cause
	}{
		{"72d3162e", ""}, {"72D3162E", ""}, {strings.Repeat("a", 512), ""}, {"é", ""},
		{strings.Repeat("a", 513), adapters.MalformedBody}, {"a\x00", adapters.MalformedBody}, {"a\xff", adapters.MalformedBody},
		{"", adapters.MissingEventID}, {" \t", adapters.MissingEventID},
	}
	for _, tt := range tests {
		a := adapters.GitHub{}
		req := signed(t, a, tt.id, "push", []byte(`{}`))
		result, err := a.Verify(req, endpointFor(a))
		if got := causeOf(err); got != tt.cause {
			t.Errorf("%q: got cause %q, want %q", tt.id, got, tt.cause)
		}
		if tt.cause == "" && result.Events[0].ID != tt.id {
			t.Errorf("%q became %q", tt.id, result.Events[0].ID)
		}
		req.Body = []byte(`{ }`)
		if got := verifyCause(a, req); got != adapters.InvalidSignature {
			t.Errorf("%q with a wrong signature: got cause %q", tt.id, got)
		}
	}
}

func TestGitHub_Form(t *testing.T) {
	t.Parallel()
	payload := url.QueryEscape(`{"action":"opened","issue":{"id":1,"title":"a + b & c = 100% é"}}`)
	issue := adapters.Event{ID: "1", Type: "issues.opened", ObjectID: "issue:1"}
	tests := []struct {
		name, contentType, body string
		want                    adapters.Event
		cause                   adapters.Cause
	}{
		{"a form", "application/x-www-form-urlencoded", "payload=" + payload, issue, ""},
		{"a form among other fields", "Application/X-WWW-Form-Urlencoded ; charset=utf-8", "a=1&payload=" + payload + "&b", issue, ""},
		{"an escaped field name is another name", "application/x-www-form-urlencoded", "p%61yload=" + payload, adapters.Event{}, adapters.MalformedBody},
		{"no payload", "application/x-www-form-urlencoded", "a=1", adapters.Event{}, adapters.MalformedBody},
		{"two payloads", "application/x-www-form-urlencoded", "payload=" + payload + "&payload=" + payload, adapters.Event{}, adapters.MalformedBody},
		{"a bad escape", "application/x-www-form-urlencoded", "payload=%zz", adapters.Event{}, adapters.MalformedBody},
		{"JSON called a form", "application/x-www-form-urlencoded", `{"action":"opened"}`, adapters.Event{}, adapters.MalformedBody},
		{"a payload that is no JSON", "application/x-www-form-urlencoded", "payload=x", adapters.Event{ID: "1", Type: "issues"}, ""},
		{"a form called JSON", "application/json", "payload=" + payload, adapters.Event{ID: "1", Type: "issues"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := adapters.GitHub{}
			req := setHeader(signed(t, a, "1", "issues", []byte(tt.body)), "Content-Type", tt.contentType)
			checkEvent(t, a, req, tt.want, tt.cause)
		})
	}
}

func TestGitHub_RefusesATolerance(t *testing.T) {
	t.Parallel()
	ep := endpointFor(adapters.GitHub{})
	ep.Tolerance = time.Minute
	if err := (adapters.GitHub{}).CheckEndpoint(ep); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("got %v", err)
	}
}
