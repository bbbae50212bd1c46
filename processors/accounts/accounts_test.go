package accounts_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/processors"
	"github.com/weirhq/weir/processors/accounts"
	"github.com/weirhq/weir/processors/processorstest"
)

func TestMain(m *testing.M) { os.Exit(processorstest.Main(m)) }

var firstAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// event is the n-th notice about an account. What it says of the account is out of date.
func event(n int, account string) processorstest.Event {
	return processorstest.Event{
		ID: fmt.Sprintf("evt_%d", n), Type: "account.updated", ObjectID: account, CreatedAt: firstAt,
		Body: fmt.Sprintf(`{"id":"evt_%d","data":{"object":{"id":%q,"charges_enabled":false}}}`, n, account),
	}
}

// provider is a server with one account that can be charged and one that is gone. Every third answer is "too many requests".
func provider(t *testing.T) accounts.Client {
	t.Helper()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer sk_test":
			w.WriteHeader(http.StatusUnauthorized)
		case asked.Add(1)%3 == 0:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		case r.URL.Path == "/v1/accounts/acct_open":
			fmt.Fprint(w, `{"id":"acct_open","charges_enabled":true,"payouts_enabled":true,"requirements":{"currently_due":["company.tax_id"]}}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	return accounts.Client{BaseURL: server.URL, Key: func() string { return "sk_test" }}
}

func TestRegister_survivesEverything(t *testing.T) {
	t.Parallel()
	processorstest.Torture(t, processorstest.Trial{
		Register: accounts.Register(provider(t).Lookup),
		Events:   []processorstest.Event{event(1, "acct_open"), event(2, "acct_gone"), event(3, "acct_open"), event(4, "acct_open")},
		Poison:   []processorstest.Event{}, // the body is not read, so there is none that could be broken
		Same:     []string{`select account_id, charges_enabled, payouts_enabled, due, closed from accounts.account order by account_id`},
		Invariant: func(_ testing.TB, h *processorstest.Harness) {
			h.Want(true, `select charges_enabled and due = '{company.tax_id}' from accounts.account where account_id = 'acct_open'`)
			h.Want(true, `select closed from accounts.account where account_id = 'acct_gone'`)
		},
	})
}

func TestRegister_asksNobodyAboutNoAccount(t *testing.T) {
	t.Parallel()
	got := processorstest.Run(t, accounts.Register(func(context.Context, string) (accounts.Account, error) {
		t.Error("asked")
		return accounts.Account{}, nil
	}), event(1, ""))
	if got.Outcome != "FAILED" || got.Reason != "rejected: the event names no account" {
		t.Errorf("got %v", got)
	}
}

func TestClient_Lookup(t *testing.T) {
	t.Parallel()
	client := provider(t)
	if a, err := client.Lookup(t.Context(), "acct_open"); err != nil || !a.ChargesEnabled {
		t.Errorf("got %+v, %v", a, err)
	}
	if _, err := client.Lookup(t.Context(), "acct_gone"); !errors.Is(err, accounts.ErrUnknown) {
		t.Errorf("an unknown account: %v", err)
	}
	var again *processors.RetryAfterError
	if _, err := client.Lookup(t.Context(), "acct_open"); !errors.As(err, &again) || again.After != time.Second {
		t.Errorf("too many requests: %v", err)
	}
	client.Key = func() string { return "sk_old" }
	if _, err := client.Lookup(t.Context(), "acct_open"); err == nil || errors.As(err, &again) {
		t.Errorf("a key that is not valid any more: %v", err)
	}
}
