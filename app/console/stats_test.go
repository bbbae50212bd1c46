package console

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/weirhq/weir/inbox"
)

func TestStatsCollector(t *testing.T) {
	t.Parallel()
	st := inbox.Stats{OldestPending: 90 * time.Second, OutboxLag: 1500 * time.Millisecond, Topics: []inbox.TopicStats{
		{Topic: "", Waiting: 2}, {Topic: "payments", Pending: 5, Leased: 3, Unpublished: 1, Failed: 4, OldestPending: time.Minute},
	}}
	var fault error
	asked := 0
	c := NewStatsCollector(func(context.Context) (inbox.Stats, error) { asked++; return st, fault }, zerolog.Nop())
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	_, url := serve(t, Config{Gatherer: reg})

	_, body := get(t, url+"/metrics")
	for _, want := range []string{
		"weir_stats_up 1", "weir_oldest_pending_seconds 90", "weir_outbox_lag_seconds 1.5",
		`weir_outbox_rows{processor="",status="WAITING"} 2`, `weir_outbox_rows{processor="payments",status="PENDING"} 5`,
		`weir_outbox_rows{processor="payments",status="FAILED"} 4`, `weir_outbox_leased_rows{processor="payments"} 3`,
		`weir_outbox_unpublished_rows{processor="payments"} 1`, `weir_processor_oldest_pending_seconds{processor="payments"} 60`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("metrics lack %s:\n%s", want, body)
		}
	}

	t.Run("scrapes at the same time are one question", func(t *testing.T) {
		c.askedAt = time.Now().Add(time.Hour)
		before := asked
		get(t, url+"/metrics")
		if asked != before {
			t.Errorf("asked %d times more", asked-before)
		}
	})
	t.Run("old numbers are not shown while Postgres does not answer", func(t *testing.T) {
		fault, c.askedAt = errors.New("away"), time.Time{}
		if _, body := get(t, url+"/metrics"); !strings.Contains(body, "weir_stats_up 0\n") || strings.Contains(body, "weir_oldest_pending_seconds") {
			t.Errorf("metrics:\n%s", body)
		}
	})
}
