package inbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/inbox"
)

func trigger(key, body string) inbox.Receipt {
	r := receipt("", "invoice.paid", body)
	r.Events[0].CoalesceKey = key
	return r
}

func TestStore_Accept_LevelTriggers(t *testing.T) {
	t.Parallel()
	t.Run("triggers join while the event is untouched and start a new one from the first lease on", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.subscribe(t, "billing")
		first := b.accept(t, trigger("item_1", "a"))
		if first.Duplicate {
			t.Fatalf("first = %+v", first)
		}
		if again := b.accept(t, trigger("item_1", "b")); !again.Duplicate || again.PayloadConflict || again.InboxID != first.InboxID {
			t.Errorf("again = %+v", again)
		}
		if other := b.accept(t, trigger("item_2", "a")); other.Duplicate {
			t.Errorf("another key joined: %+v", other)
		}
		d := b.leaseOne(t, "billing", first.InboxID)
		during := b.accept(t, trigger("item_1", "c"))
		if during.Duplicate {
			t.Error("a trigger joined an event whose processor may have read the state already")
		}
		if _, err := b.Complete(t.Context(), d, inbox.Completion{}, nothing); err != nil {
			t.Fatal(err)
		}
		if after := b.accept(t, trigger("item_1", "d")); after.InboxID != during.InboxID || !after.Duplicate {
			t.Errorf("after = %+v, want joined to %s", after, during.InboxID)
		}
		ds, err := b.LeaseDue(t.Context(), "billing", 10, time.Minute)
		if err != nil || len(ds) != 2 {
			t.Fatalf("%d leased, %v", len(ds), err)
		}
		if n := one[int](t, b, `select count(*) from weir.coalesce_head`); n != 0 {
			t.Errorf("%d heads left", n)
		}
	})
	t.Run("a key and an id of the same text are two events, in one batch and in two", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		r := trigger("same", "x")
		r.Events = append(r.Events, inbox.Event{ProviderEventID: "same", Type: "invoice.paid", Index: 1},
			inbox.Event{CoalesceKey: "same", Type: "invoice.paid", Index: 2})
		got, err := b.Accept(t.Context(), r)
		if err != nil || got[0].Duplicate || got[1].Duplicate || !got[2].Duplicate || got[2].InboxID != got[0].InboxID {
			t.Errorf("got %+v, err %v", got, err)
		}
	})
	t.Run("no trigger is lost while leases and triggers race", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.subscribe(t, "billing")
		ctx, cancel := context.WithCancel(context.Background())
		var workers sync.WaitGroup
		// A worker notes the time at which it "reads the provider" for each key.
		var mu sync.Mutex
		read := map[string]time.Time{}
		for range 2 {
			workers.Add(1)
			go func() {
				defer workers.Done()
				for ctx.Err() == nil {
					ds, err := b.LeaseDue(context.Background(), "billing", 4, time.Minute)
					if err != nil {
						t.Error(err)
						return
					}
					for i := range ds {
						now := time.Now()
						body, _, err := b.OpenPayload(context.Background(), &ds[i])
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						if now.After(read[string(body)]) {
							read[string(body)] = now
						}
						mu.Unlock()
						if _, err := b.Complete(context.Background(), &ds[i], inbox.Completion{}, nothing); err != nil {
							t.Error(err)
						}
					}
				}
			}()
		}
		var senders sync.WaitGroup
		sent := make([]time.Time, 4)
		for k := range sent {
			senders.Add(1)
			go func() {
				defer senders.Done()
				key := fmt.Sprintf("key_%d", k)
				for range 60 {
					at := time.Now()
					if _, err := b.Accept(context.Background(), trigger(key, key)); err != nil {
						t.Error(err)
						return
					}
					sent[k] = at
				}
			}()
		}
		senders.Wait()
		waitFor(t, "everything to be processed", func() bool {
			return one[int](t, b, `select count(*) from weir.webhook_outbox`) == 0
		})
		cancel()
		workers.Wait()
		for k, at := range sent {
			if !read[fmt.Sprintf("key_%d", k)].After(at) {
				t.Errorf("key %d: last trigger sent at %v, provider last read at %v", k, at, read[fmt.Sprintf("key_%d", k)])
			}
		}
		if n := one[int](t, b, `select sum(duplicate_count + 1) from weir.webhook_inbox`); n != 240 {
			t.Errorf("%d triggers counted, want 240", n)
		}
	})
}
