package processors

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestMask(t *testing.T) {
	t.Parallel()
	body := []byte(`{"id":"pi_x","customer":{"name":"Jane Doe-Smith","city":"Tromsø"},"status" : "succeeded","note":"amount is wrong"}`)
	for _, c := range []struct{ name, in, want string }{
		{"words of the author stay", "the payment cannot be captured twice", "the payment cannot be captured twice"},
		{"an apostrophe is no quote", "can't read the customer's state", "can't read the customer's state"},
		{"numbers", "payment 4711 of 12,50 EUR at -3", "payment … of …,… EUR at …"},
		{"ids", "no row for cus_Nf92 and pi-3NWeir", "no row for … and …"},
		{"double quotes", `invalid input syntax for type uuid: "jane"`, `invalid input syntax for type uuid: "…"`},
		{"single quotes", `the name 'Jane' is taken`, `the name '…' is taken`},
		{"backquotes and guillemets", "`select x` and «y» and “z”", "`…` and «…» and “…”"},
		{"a quote that is never closed", `unexpected "abc def`, `unexpected "…"`},
		{"key=value", "user=jane state=open; x == y", "user=… state=…; x == y"},
		{"Postgres details", "Key (email)=(jane at home) already exists.", "Key (email)=… already exists."},
		{"braces and brackets", "got {Name:Jane Age:x} and map[a:{b c}] and <b>x</b>", "got {…} and map[…] and <…>x<…>"},
		{"brackets that are never closed", "got {Name:Jane", "got {…}"},
		{"smaller than", "a < b", "a < b"},
		{"addresses", "mail to jane.roe@example.org, failed", "mail to …, failed"},
		{"links", "get https://example.org/a?token=abc: refused", "get …: refused"},
		{"long tokens", "token " + strings.Repeat("abcdefg", 5) + " refused", "token … refused"},
		{"a run of hidden words", "1 2 3 4", "… … … …"},
		{"words of the payload", "no account of Jane Doe-Smith in Tromsø", "no account of … … in …"},
		{"a status of the payload", "already succeeded", "already …"},
		{"member names of the payload stay", "no customer and no status", "no customer and no status"},
		{"a member name that is a value too", "the amount is bad", "the … is bad"},
		{"parts of words stay", "succeededly", "succeededly"},
		{"control characters", "a\x00b\r\n\tc\u202e\u2028d", "a b c d"},
		{"broken UTF-8", "a\xff\xfeb", "a\uFFFDb"},
		{"nothing", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := mask(c.in, body); got != c.want {
				t.Errorf("mask(%q)\n got %q\nwant %q", c.in, got, c.want)
			}
		})
	}
}

func TestCause(t *testing.T) {
	t.Parallel()
	_, urlErr := url.Parse(strings.Join([]string{"http://a", "b/4711"}, " "))
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"plain", errBoom, "error: boom"},
		{"wrapped", fmt.Errorf("read: %w", context.Canceled), "error: read: context canceled"},
		{"a type that tells something", fmt.Errorf("x: %w", urlErr), `error (*url.Error): x: parse "…": invalid character "…" in host name`},
		{"Postgres", &pgconn.PgError{Code: "23505", SchemaName: "a", TableName: "b", ConstraintName: "b_pkey",
			Message: `duplicate key value violates unique constraint "b_pkey"`, Detail: "Key (x)=(secret) already exists."},
			`error: SQLSTATE 23505, table a.b, constraint b_pkey: duplicate key value violates unique constraint "…"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := cause("error", c.err, nil); got != c.want {
				t.Errorf("got %q\nwant %q", got, c.want)
			}
		})
	}
	t.Run("is bounded and never split", func(t *testing.T) {
		t.Parallel()
		for n := 480; n < 520; n++ {
			got := cause("error", errors.New(strings.Repeat("ä ", n)), nil)
			if len(got) > causeBytesMax || !utf8.ValidString(got) || !strings.HasSuffix(got, hidden) {
				t.Fatalf("%d bytes: %q", len(got), got)
			}
		}
		if got := cause("error", errors.New(strings.Repeat("\xff'", 1<<20)), nil); len(got) > causeBytesMax {
			t.Errorf("%d bytes", len(got))
		}
	})
}

// FuzzMask holds that no word of the payload's values gets through, however the error quotes it.
func FuzzMask(f *testing.F) {
	f.Add("cannot store ", " now")
	f.Add("'", "\"x")
	f.Add("a=(", ")")
	f.Add("\xff{", "’")
	f.Fuzz(func(t *testing.T, before, after string) {
		const canary = "canaryword"
		got := mask(before+" "+canary+" "+after, []byte(`{"name":"a canaryword b"}`))
		if strings.Contains(before+after, "canary") {
			return
		}
		if strings.Contains(got, canary) {
			t.Errorf("the payload's word stands in %q", got)
		}
		if len(got) > causeBytesMax || !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\n\r") {
			t.Errorf("not storable: %q", got)
		}
	})
}
