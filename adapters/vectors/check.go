package vectors

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weirhq/weir/adapters"
)

// Check holds the adapter against the vector and returns what differs, one short line each. Nothing means that it holds.
// Lines name causes, ids and types; they never hold a secret, a signature or a body.
func (v Vector) Check(a adapters.Adapter) []string {
	var faults []string
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	body := string(v.Request.Body)
	result, err := a.Verify(&v.Request, &v.Endpoint)
	if string(v.Request.Body) != body {
		add("Verify changed the body")
	}
	if err != nil {
		return append(faults, v.checkRefusal(err)...)
	}
	if v.Want.Cause != "" {
		add("was let pass, want %s (%s)", v.Want.Cause, v.Want.Result)
		return faults
	}
	var events []WantEvent
	for _, e := range result.Events {
		if v.Want.TypeOpen {
			e.Type = ""
		}
		events = append(events, WantEvent{e.ID, e.Type, e.CoalesceKey})
	}
	if !slices.Equal(events, v.Want.Events) {
		add("got events %q, want %q", events, v.Want.Events)
	}
	if result.Handshake != v.Want.Handshake {
		add("handshake is %t, want %t", result.Handshake, v.Want.Handshake)
	}
	if fault := v.checkResponse(result.Response); fault != "" {
		add("%s", fault)
	}
	if want := v.Want.MatchedVersion; want != "" && result.MatchedVersion != want {
		add("matched version %q, want %q", result.MatchedVersion, want)
	}
	return faults
}

func (v Vector) checkRefusal(err error) []string {
	var refusal *adapters.Refusal
	switch {
	case !errors.As(err, &refusal):
		return []string{fmt.Sprintf("failed with %v, want %s", err, v.Want.Result)}
	case v.Want.Cause == "":
		return []string{fmt.Sprintf("refused: %s (%s), want %s", refusal.Cause, refusal.Detail, v.Want.Result)}
	case refusal.Cause != v.Want.Cause:
		return []string{fmt.Sprintf("got cause %s (%s), want %s", refusal.Cause, refusal.Detail, v.Want.Cause)}
	}
	// The edge answers most refusals 401 by itself; another status must come from the adapter.
	if want := v.Want.Response; want != nil && want.Status != 401 && (refusal.Response == nil || refusal.Response.Status != want.Status) {
		return []string{fmt.Sprintf("the refusal does not ask for status %d", want.Status)}
	}
	return nil
}

// checkResponse compares the answer to a request that passed. An absent answer is an empty 200.
func (v Vector) checkResponse(got *adapters.Response) string {
	want := v.Want.Response
	if want == nil {
		return ""
	}
	if got == nil {
		got = &adapters.Response{}
	}
	status := func(r *adapters.Response) int {
		if r.Status == 0 {
			return 200
		}
		return r.Status
	}
	switch {
	case status(got) != status(want):
		return fmt.Sprintf("answers %d, want %d", status(got), status(want))
	case want.ContentType != "" && len(want.Body) > 0 && got.ContentType != want.ContentType:
		return fmt.Sprintf("answers with content type %q, want %q", got.ContentType, want.ContentType)
	case string(got.Body) != string(want.Body):
		return fmt.Sprintf("answers with %d bytes that are not the %d wanted", len(got.Body), len(want.Body))
	}
	for _, h := range want.Headers {
		if value, count := got.Headers.Get(h.Name); count != 1 || value != h.Value {
			return fmt.Sprintf("answers without the header %s", h.Name)
		}
	}
	return ""
}
