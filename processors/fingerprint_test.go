package processors

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestFingerprint(t *testing.T) {
	t.Parallel()
	t.Run("a million failures that differ in values are few groups", func(t *testing.T) {
		t.Parallel()
		groups := map[string]int{}
		const n = 20_000
		for i := range n {
			order, amount := fmt.Sprintf("ord_%d", rand.IntN(1e9)), rand.IntN(1e6)
			body := fmt.Appendf(nil, `{"order":%q,"customer":"Ada Lovelace"}`, order)
			var err error
			switch i % 4 {
			case 0:
				err = fmt.Errorf("load order %s: no such order", order)
			case 1:
				err = fmt.Errorf("Ada Lovelace owes %d cents, at most %d allowed", amount, i)
			case 2:
				err = &pgconn.PgError{Code: "23505", SchemaName: "shop", TableName: "orders", ConstraintName: "orders_pkey", Message: "duplicate key " + order}
			case 3:
				err = fmt.Errorf(`dial tcp 10.0.%d.%d:443: i/o timeout`, i%250, amount%250)
			}
			groups[fingerprint("shop", cause("error", err, body), nil)]++
		}
		if len(groups) != 4 {
			t.Errorf("%d groups of 4 kinds of failures: %v", len(groups), groups)
		}
	})
	t.Run("what differs in kind differs", func(t *testing.T) {
		t.Parallel()
		unique := &pgconn.PgError{Code: "23505", SchemaName: "shop", TableName: "orders", ConstraintName: "orders_pkey"}
		other := &pgconn.PgError{Code: "23505", SchemaName: "shop", TableName: "orders", ConstraintName: "orders_number_key"}
		seen := map[string]string{}
		for name, f := range map[string]string{
			"unique":            fingerprint("shop", cause("error", unique, nil), nil),
			"another unique":    fingerprint("shop", cause("error", other, nil), nil),
			"rejected":          fingerprint("shop", cause("rejected", unique, nil), nil),
			"another processor": fingerprint("mail", cause("error", unique, nil), nil),
			"text":              fingerprint("shop", cause("error", errors.New("no such order"), nil), nil),
			"another text":      fingerprint("shop", cause("error", errors.New("no such customer"), nil), nil),
			"panic":             fingerprint("shop", cause("panic", errors.New("nil map"), nil), []string{"runtime.gopanic:1", "shop.apply:7"}),
			"panic elsewhere":   fingerprint("shop", cause("panic", errors.New("nil map"), nil), []string{"runtime.gopanic:1", "shop.refund:9"}),
		} {
			if was, ok := seen[f]; ok {
				t.Errorf("%s and %s are one group", name, was)
			}
			seen[f] = name
		}
	})
	t.Run("another build of the same code keeps the group", func(t *testing.T) {
		t.Parallel()
		a := fingerprint("shop", "panic: nil map", []string{"shop.apply:7"})
		b := fingerprint("shop", "panic: nil map", []string{"shop.apply:19"})
		if a != b {
			t.Errorf("%s and %s", a, b)
		}
	})
	t.Run("a reason of any form has one", func(t *testing.T) {
		t.Parallel()
		for _, reason := range []string{"", "…", ":", "attempts used up; the last one", "SQLSTATE", "déjà: vu"} {
			if f := fingerprint("p", reason, nil); len(f) < fingerprintHexLen || len(f) > 64 {
				t.Errorf("%q: %q", reason, f)
			}
		}
	})
}
