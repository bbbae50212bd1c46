package processors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/weirhq/weir/inbox"
)

const (
	// backfillTimeout is what one call of a Backfill gets; backfillHold is how long others leave its gap alone.
	backfillTimeout = time.Minute
	backfillHold    = backfillTimeout + 30*time.Second
	// backfillAsksMax is how often a gap is asked about; the pause doubles from backfillPause on.
	backfillAsksMax = 5
	backfillPause   = 5 * time.Second
	// backfillInterval is the pause between two looks for gaps that another process has left.
	backfillInterval = 5 * time.Second
	backfillsAtOnce  = 4
	// backfilledVersion stands in the place of the secret's version: the event was fetched by the team, not verified here.
	backfilledVersion = "backfill"
)

// errOutside says what is wrong with a backfilled event, and nothing of what is in it.
var errOutside = errors.New("the backfill returned an event without id, type or body, or with a version that was not asked for")

// RunBackfills asks for missing versions of sequences until ctx ends: as soon as this process meets a gap, and every few
// seconds for those that another one has left. It returns at once if no processor has a Gap.Backfill.
func (r *Runner) RunBackfills(ctx context.Context) error {
	if len(r.backfilled()) == 0 {
		return nil
	}
	for {
		if _, err := r.BackfillOnce(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn().Str("err", cause("store", err, nil)).Msg("backfill.failed")
		}
		timer := time.NewTimer(backfillInterval/2 + rand.N(backfillInterval))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-r.gaps:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// BackfillOnce asks about every gap that is due and returns how many there were.
func (r *Runner) BackfillOnce(ctx context.Context) (asked int, err error) {
	names := r.backfilled()
	if len(names) == 0 {
		return 0, nil
	}
	for {
		gaps, err := r.store.ClaimGaps(ctx, names, backfillsAtOnce, backfillHold)
		if err != nil || len(gaps) == 0 {
			return asked, err
		}
		asked += len(gaps)
		var wg sync.WaitGroup
		for _, g := range gaps {
			wg.Go(func() { r.backfill(ctx, g) })
		}
		wg.Wait()
		if ctx.Err() != nil {
			return asked, ctx.Err()
		}
	}
}

func (r *Runner) wakeBackfill() {
	select {
	case r.gaps <- struct{}{}:
	default:
	}
}

// backfilled names the processors that have a Backfill.
func (r *Runner) backfilled() []string {
	var names []string
	for _, s := range r.specs {
		if order, ok := s.Order.(sequenced); ok && order.gap.Backfill != nil {
			names = append(names, s.Name)
		}
	}
	return names
}

// backfill asks about one gap and notes when to ask again. Who is stopped meanwhile leaves it to the end of the hold.
func (r *Runner) backfill(ctx context.Context, g inbox.Gap) {
	var events int
	var err error
	if g.To >= g.From && g.Ask <= backfillAsksMax {
		events, err = r.askFor(ctx, g)
	}
	if ctx.Err() != nil {
		return
	}
	again := time.Duration(0)
	var rejected *RejectError
	if err != nil && !errors.As(err, &rejected) && g.Ask < backfillAsksMax {
		again = backfillPause << (g.Ask - 1)
		if later := (*RetryAfterError)(nil); errors.As(err, &later) && later.After > 0 {
			again = later.After
		}
	}
	level, result := zerolog.InfoLevel, "ok"
	if err != nil {
		level, result = zerolog.WarnLevel, "error"
	}
	r.metrics.backfills.WithLabelValues(g.Processor, result).Inc()
	line := r.log.WithLevel(level).Str("processor", g.Processor).Str("endpoint", g.EndpointID).Str("provider", g.Provider).
		Int64("missing_from", g.From).Int64("missing_to", g.To).Int("ask", g.Ask).Int("events", events)
	if err != nil {
		line.Str("err", cause("backfill", err, nil)).Dur("again_ms", again)
	}
	line.Msg("gap.asked")
	settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := r.store.Asked(settle, g, again); err != nil {
		r.log.Warn().Str("processor", g.Processor).Str("err", cause("store", err, nil)).Msg("backfill.failed")
	}
}

// askFor calls the team's Backfill and stores what it returns.
func (r *Runner) askFor(ctx context.Context, g inbox.Gap) (stored int, err error) {
	ctx, cancel := context.WithTimeout(ctx, backfillTimeout)
	defer cancel()
	got, err := callBackfill(ctx, r.entries[g.Processor].spec.Order.(sequenced).gap, g)
	if err != nil {
		return 0, err
	}
	var bad error
	for _, ev := range got {
		if ev.ID == "" || ev.Type == "" || len(ev.Body) == 0 || ev.Version < g.From || ev.Version > g.To {
			bad = errOutside
			continue
		}
		_, err := r.store.Accept(ctx, inbox.Receipt{
			Provider: g.Provider, EndpointID: g.EndpointID, ReceivedAt: time.Now(), Body: ev.Body, MatchedSecretVersion: backfilledVersion,
			Events: []inbox.Event{{ProviderEventID: ev.ID, Type: ev.Type, ObjectID: g.ObjectID, ObjectVersion: &ev.Version, CreatedAt: ev.CreatedAt}},
		})
		if err != nil {
			return stored, fmt.Errorf("store a backfilled event: %w", err)
		}
		stored++
	}
	return stored, bad
}

func callBackfill(ctx context.Context, gap Gap, g inbox.Gap) (events []BackfilledEvent, err error) {
	defer recoverInto(&err)
	events, err = gap.Backfill(ctx, Object{Provider: g.Provider, EndpointID: g.EndpointID, ID: g.ObjectID}, g.From, g.To)
	return events, examine(err)
}
