package processors

import (
	"context"
	stdjson "encoding/json"
	"fmt"
	"strings"
	"testing"
)

// A number arrives with the value that was sent, or the event is FAILED: nothing is rounded into a field.
func TestJSON_numbersAreExactOrRejected(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number string
		// whole and exact are the values that an int64 and a json.Number get; "" where the number does not fit.
		whole, exact string
	}{
		{"9007199254740993", "9007199254740993", "9007199254740993"}, // 2^53+1, which no float64 holds
		{"-9007199254740993", "-9007199254740993", "-9007199254740993"},
		{"9223372036854775807", "9223372036854775807", "9223372036854775807"},
		{"9223372036854775808", "", "9223372036854775808"},
		{"1e400", "", "1e400"},
		{"1.0", "", "1.0"}, // an amount with a fraction where none is expected is another unit
		{"1e2", "", "1e2"},
		{"19.99", "", "19.99"},
		{"0.1000000000000000055511151231257827", "", "0.1000000000000000055511151231257827"},
		{"123456789012345678901234567890.123456789", "", "123456789012345678901234567890.123456789"},
	} {
		t.Run(c.number, func(t *testing.T) {
			t.Parallel()
			body := fmt.Appendf(nil, `{"n":%s}`, c.number)
			var whole, exact, loose string
			wantOrRejected(t, body, c.whole, &whole, JSON(func(_ context.Context, _ Tx, _ Event, p struct {
				N int64 `json:"n"`
			},
			) error {
				whole = fmt.Sprint(p.N)
				return nil
			}))
			wantOrRejected(t, body, c.exact, &exact, JSON(func(_ context.Context, _ Tx, _ Event, p struct {
				N stdjson.Number `json:"n"`
			},
			) error {
				exact = p.N.String()
				return nil
			}))
			quoted := ""
			wantOrRejected(t, fmt.Appendf(nil, `{"n":"%s"}`, c.number), c.exact, &quoted, JSON(func(_ context.Context, _ Tx, _ Event, p struct {
				N stdjson.Number `json:"n"`
			},
			) error {
				quoted = p.N.String()
				return nil
			}))
			wantOrRejected(t, body, c.exact, &loose, JSON(func(_ context.Context, _ Tx, _ Event, p map[string]any) error {
				loose = fmt.Sprint(p["n"])
				return nil
			}))
		})
	}
}

func TestJSON_whatIsNoNumberIsRejected(t *testing.T) {
	t.Parallel()
	for _, n := range []string{`"canary"`, `"1 "`, `" 1"`, `""`, `"1,5"`, `"0x10"`, `"NaN"`, `true`, `[]`} {
		h := JSON(func(context.Context, Tx, Event, struct {
			N stdjson.Number `json:"n"`
		},
		) error {
			return nil
		})
		seen, _ := handleWith(t, t.Context(), &fakeStore{body: []byte(`{"n":` + n + `}`)}, Spec{}, h, delivery(1))
		if seen.Verdict != VerdictRejected || strings.Contains(seen.Reason, "canary") {
			t.Errorf("%s: %q (%s)", n, seen.Verdict, seen.Reason)
		}
	}
}

func wantOrRejected(t *testing.T, body []byte, want string, got *string, h Handler) {
	t.Helper()
	verdict := VerdictProcessed
	if want == "" {
		verdict = VerdictRejected
	}
	seen, _ := handleWith(t, t.Context(), &fakeStore{body: body}, Spec{}, h, delivery(1))
	if seen.Verdict != verdict || *got != want {
		t.Errorf("%s: %q with %q (%s), want %q with %q", body, seen.Verdict, *got, seen.Reason, verdict, want)
	}
}
