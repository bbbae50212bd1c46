package inbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/inbox/fault"
)

// Accept stores a receipt and returns once it is durable: for every event a row, or one more arrival on the row that is
// already there. It seals in the caller's goroutine, uploads a large body to the object store, then joins a group commit. If ctx ends while the commit is under
// way the outcome is ErrCommitUnknown; the commit itself has its own deadline and is not cancelled.
//
// Errors: ErrUnavailable, with ErrObjectsUnavailable among it, and ErrClosed (nothing stored), ErrCommitUnknown, ErrBadEvent.
func (s *Store) Accept(ctx context.Context, r Receipt) ([]Accepted, error) {
	if len(r.Events) == 0 {
		return nil, fmt.Errorf("%w: a receipt without events", ErrBadEvent)
	}
	it, err := s.prepare(ctx, r)
	if err != nil {
		return nil, err
	}
	if !s.batch.add(it) {
		return nil, ErrClosed
	}
	select {
	case <-it.done:
	case <-ctx.Done():
		if s.batch.remove(it) {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
		}
		return nil, fmt.Errorf("%w: %w", ErrCommitUnknown, context.Cause(ctx))
	}
	if it.err != nil {
		return nil, it.err
	}
	s.discard(it)
	return it.accepted, nil
}

// item is one receipt on its way into a batch.
type item struct {
	receipt   *Receipt
	ref       string
	payloadID uuid.UUID
	pieces    [][]byte
	hash      [sha256.Size]byte
	ids       []uuid.UUID

	accepted []Accepted
	err      error
	done     chan struct{}
}

func (s *Store) prepare(ctx context.Context, r Receipt) (*item, error) {
	payloadID, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("inbox: accept: %w", err)
	}
	sealed, err := s.sealer.seal(payloadID, r.EndpointID, r.Headers, r.Body, time.Now())
	if err != nil {
		return nil, err
	}
	it := &item{
		receipt: &r, ref: payloadID.String(), payloadID: payloadID,
		hash: sha256.Sum256(r.Body), ids: make([]uuid.UUID, len(r.Events)), done: make(chan struct{}),
	}
	for i := range it.ids {
		if it.ids[i], err = uuid.NewV7(); err != nil {
			return nil, fmt.Errorf("inbox: accept: %w", err)
		}
	}
	if s.asObject(r.Body) {
		return it, s.upload(ctx, it, sealed)
	}
	it.pieces = chunks(sealed)
	return it, nil
}

func (it *item) finish(accepted []Accepted, err error) {
	it.accepted, it.err = accepted, err
	close(it.done)
}

// batcher is the queue in front of the writers. A free writer takes what waits; a further writer starts only when many
// wait, because fuller batches cost less.
type batcher struct {
	mu       sync.Mutex
	wake     *sync.Cond
	queue    []*item
	events   int
	active   int
	closed   bool
	batchMax int
	batchMin int
	linger   time.Duration
	// since is when the head of the queue began to wait, stall the timer of that wait.
	since time.Time
	stall *time.Timer
}

// stallAfter is how long the queue waits for a busy writer before a further one starts, however short the queue is: the
// busy one may hang on a lock.
const stallAfter = 50 * time.Millisecond

func newBatcher(cfg Config) *batcher {
	b := &batcher{batchMax: cfg.BatchMax, batchMin: cfg.BatchMin, linger: cfg.Linger}
	b.wake = sync.NewCond(&b.mu)
	b.stall = time.AfterFunc(time.Hour, b.wake.Signal)
	b.stall.Stop()
	return b
}

// begin notes that another item is the head of the queue now. b.mu is held.
func (b *batcher) begin() {
	b.since = time.Now()
	b.stall.Reset(stallAfter)
}

// due says that there is work for one more writer. b.mu is held.
func (b *batcher) due() bool {
	return len(b.queue) > 0 && (b.active == 0 || b.events >= b.batchMin || b.closed || time.Since(b.since) >= stallAfter)
}

func (b *batcher) add(it *item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	if len(b.queue) == 0 {
		b.begin()
	}
	b.queue = append(b.queue, it)
	b.events += len(it.ids)
	if b.active == 0 || b.events >= b.batchMin {
		b.wake.Signal()
	}
	return true
}

// remove takes back an item that no writer has taken yet.
func (b *batcher) remove(it *item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.queue, it)
	if i < 0 {
		return false
	}
	b.queue = slices.Delete(b.queue, i, i+1)
	b.events -= len(it.ids)
	return true
}

func (b *batcher) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wake.Broadcast()
}

// abandon answers what is still queued.
func (b *batcher) abandon() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range b.queue {
		it.finish(nil, ErrUnavailable)
	}
	b.queue, b.events = nil, 0
}

// next blocks until there is work for one more writer and returns it; nil means that the queue is closed and empty.
// busy says that the writer has just written a batch of several, so that waiting a little fills the next one.
func (b *batcher) next(busy bool) []*item {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		for !b.due() {
			if b.closed && len(b.queue) == 0 {
				return nil
			}
			busy = false
			b.wake.Wait()
		}
		b.active++
		if busy && b.linger > 0 && b.events < b.batchMax && !b.closed {
			busy = false
			b.mu.Unlock()
			time.Sleep(b.linger)
			b.mu.Lock()
		}
		if batch := b.take(); len(batch) > 0 {
			return batch
		}
		b.active--
	}
}

func (b *batcher) take() []*item {
	n, events := 0, 0
	for n < len(b.queue) && (n == 0 || events+len(b.queue[n].ids) <= b.batchMax) {
		events += len(b.queue[n].ids)
		n++
	}
	batch := slices.Clone(b.queue[:n])
	b.queue = slices.Delete(b.queue, 0, n)
	b.events -= events
	if len(b.queue) > 0 {
		b.begin()
	} else {
		b.stall.Stop()
	}
	return batch
}

func (b *batcher) release() {
	b.mu.Lock()
	b.active--
	again := len(b.queue) > 0
	b.mu.Unlock()
	if again {
		b.wake.Signal()
	}
}

// write is one writer.
func (s *Store) write() {
	busy := false
	for {
		items := s.batch.next(busy)
		if items == nil {
			return
		}
		s.commit(items)
		busy = len(items) > 1
		s.batch.release()
	}
}

// commit stores a batch. A batch that the server refuses for its data is stored item by item, so that one bad row harms
// nobody else. Only what is known to be rolled back is ever tried again.
func (s *Store) commit(items []*item) {
	const tries = 3
	var err error
	for range tries {
		if err = s.commitOnce(items); err == nil || !transient(err) {
			break
		}
	}
	switch {
	case err == nil:
	case dataFault(err) && len(items) > 1:
		s.metrics.splits.Inc()
		for _, it := range items {
			s.commit([]*item{it})
		}
	default:
		s.refuse(items, err)
	}
}

func (s *Store) refuse(items []*item, err error) {
	kind := ErrUnavailable
	switch {
	case takenPayload(err): // the sweep was first; nothing is wrong with the event
	case dataFault(err):
		kind = ErrBadEvent
	case errors.Is(err, ErrCommitUnknown) || stateAfter(err) == commitUnknown:
		kind = ErrCommitUnknown
		s.metrics.commitUnknown.Inc()
	}
	// The server's text may quote values, so only its code is kept.
	cause := fmt.Errorf("%w (%s)", kind, describe(err))
	s.log.Warn().Str("err", cause.Error()).Int("receipts", len(items)).Msg("accept.failed")
	for _, it := range items {
		it.finish(nil, cause)
	}
}

// describe names an error without any value in it.
func describe(err error) string {
	switch code := sqlState(err); {
	case code != "":
		return "SQLSTATE " + code
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case errors.Is(err, ErrCommitUnknown):
		return "synchronous standby"
	default:
		return "connection"
	}
}

// line is one row to be inserted: the first arrival of its event in the batch.
type line struct {
	it         *item
	event      int
	duplicates int64
	inboxID    uuid.UUID // what the database says
	hash       []byte
	answered   bool
}

// arrival maps an event of an item to its line; only the line's own first arrival leads.
type arrival struct {
	line  *line
	leads bool
}

type eventKey struct{ provider, endpoint, id string }

// keyOf names an event within a batch. A coalesce key cannot be mistaken for an id: no id holds a NUL.
func keyOf(r *Receipt, event int) eventKey {
	id := r.Events[event].ProviderEventID
	if key := r.Events[event].CoalesceKey; key != "" {
		id = "\x00" + key
	}
	return eventKey{r.Provider, r.EndpointID, id}
}

// fold joins the twins of a batch and sorts the rest by key, so that two batches lock rows in one order.
func fold(items []*item) (lines []*line, arrivals [][]arrival) {
	known := map[eventKey]*line{}
	arrivals = make([][]arrival, len(items))
	for i, it := range items {
		for e := range it.receipt.Events {
			key := keyOf(it.receipt, e)
			l, twin := known[key]
			if twin {
				l.duplicates++
			} else {
				l = &line{it: it, event: e}
				known[key] = l
				lines = append(lines, l)
			}
			arrivals[i] = append(arrivals[i], arrival{line: l, leads: !twin})
		}
	}
	slices.SortFunc(lines, func(a, b *line) int {
		x, y := keyOf(a.it.receipt, a.event), keyOf(b.it.receipt, b.event)
		return cmp.Or(strings.Compare(x.provider, y.provider), strings.Compare(x.endpoint, y.endpoint), strings.Compare(x.id, y.id))
	})
	return lines, arrivals
}

// acceptSQL is the whole accept transaction in one statement. "ins" waits for an open twin and then counts a duplicate,
// or inserts if the twin rolls back; the id it returns is one of ours only for a fresh event. "head" does the same for
// level triggers and lends them the id of the event they join. Payload and outbox rows
// follow for those alone. The arrays are sorted by key in Go, which is the order in which rows are locked.
const acceptSQL = `
with item as materialized (
  select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[],
    $8::timestamptz[], $9::timestamptz[], $10::text[], $11::integer[], $12::bytea[], $13::text[], $14::bigint[], $18::text[])
    with ordinality as t (inbox_id, provider, endpoint_id, provider_event_id, event_type, object_id, object_version,
      provider_created_at, received_at, raw_payload_ref, payload_index, payload_hash, matched_secret_version,
      duplicates, coalesce_key, ord)
), head as (
  insert into weir.coalesce_head as h (provider, endpoint_id, coalesce_key, inbox_id, last_seen_at)
  select i.provider, i.endpoint_id, i.coalesce_key, i.inbox_id, i.received_at
  from item i where i.coalesce_key is not null order by i.ord
  on conflict (provider, endpoint_id, coalesce_key) do update
    set last_seen_at = greatest(h.last_seen_at, excluded.last_seen_at)
  returning h.provider, h.endpoint_id, h.coalesce_key, h.inbox_id
), named as materialized (
  select i.*, coalesce('coalesced:' || head.inbox_id::text, i.provider_event_id) as event_id
  from item i left join head on head.provider = i.provider and head.endpoint_id = i.endpoint_id
    and head.coalesce_key = i.coalesce_key
), wanted as materialized (
  select distinct i.inbox_id, s.processor
  from item i join weir.subscription s on s.provider = i.provider and i.endpoint_id like s.endpoint_like
    and i.event_type like s.type_like and i.received_at >= s.since
), ins as (
  insert into weir.webhook_inbox as w (inbox_id, provider, endpoint_id, provider_event_id, event_type, object_id,
    object_version, provider_created_at, received_at, raw_payload_ref, payload_index, payload_hash,
    matched_secret_version, duplicate_count, last_seen_at, open_deliveries)
  select n.inbox_id, n.provider, n.endpoint_id, n.event_id, n.event_type, n.object_id, n.object_version,
    n.provider_created_at, n.received_at, n.raw_payload_ref, n.payload_index, n.payload_hash,
    n.matched_secret_version, n.duplicates, n.received_at, coalesce(c.deliveries, 1)
  from named n
  left join (select inbox_id, count(*) as deliveries from wanted group by inbox_id) c using (inbox_id) order by n.ord
  on conflict (provider, endpoint_id, provider_event_id) do update
    set duplicate_count = w.duplicate_count + 1 + excluded.duplicate_count,
        last_seen_at = greatest(w.last_seen_at, excluded.last_seen_at)
  returning w.inbox_id, w.provider, w.endpoint_id, w.provider_event_id, w.payload_hash
), fresh as materialized (
  select i.ord, i.inbox_id, i.raw_payload_ref from item i join ins using (inbox_id)
), pay as (
  insert into weir.webhook_payload (payload_id, seq, sealed)
  select c.payload_id, c.seq, c.sealed from unnest($15::uuid[], $16::smallint[], $17::bytea[]) as c (payload_id, seq, sealed)
  where c.payload_id::text in (select right(raw_payload_ref, 36) from fresh)
), out as (
  insert into weir.webhook_outbox (inbox_id, topic, status)
  select f.inbox_id, coalesce(w.processor, ''), case when w.processor is null then 'WAITING' else 'PENDING' end
  from fresh f left join wanted w using (inbox_id) order by f.ord, w.processor
  returning outbox_id, inbox_id, topic
)
select n.ord, ins.inbox_id, ins.payload_hash, out.outbox_id, out.topic
from named n
join ins on ins.provider = n.provider and ins.endpoint_id = n.endpoint_id and ins.provider_event_id = n.event_id
left join out on out.inbox_id = ins.inbox_id`

// commitOnce runs the statement once and, on success, answers every item.
func (s *Store) commitOnce(items []*item) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.CommitTimeout)
	defer cancel()
	lines, arrivals := fold(items)
	conn, err := s.accepts.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, errNotSent{err})
	}
	defer conn.Release()
	delete(conn.Conn().PgConn().CustomData(), syncWaitCancelled)

	fault.Point("accept.before_commit")
	started := time.Now()
	refs, err := s.insert(ctx, conn.Conn(), lines)
	s.metrics.commitSeconds.Observe(time.Since(started).Seconds())
	if err != nil {
		if code := sqlState(err); code == "25006" || strings.HasPrefix(code, "57P") {
			conn.Conn().Close(ctx) // a server that became read-only or goes away must not be asked again on this connection
		}
		return err
	}
	if takeSyncWaitCancelled(conn.Conn()) {
		conn.Conn().Close(ctx)
		return ErrCommitUnknown
	}
	s.metrics.commitEvents.Observe(float64(len(lines)))
	if fresh := s.fresh.Load(); fresh != nil && *fresh != nil && len(refs) > 0 {
		(*fresh)(refs)
	}
	s.answer(items, arrivals)
	return nil
}

// errNotSent marks an error that came before anything reached the server.
type errNotSent struct{ error }

func (errNotSent) SafeToRetry() bool { return true }

func (e errNotSent) Unwrap() error { return e.error }

func (s *Store) insert(ctx context.Context, conn *pgx.Conn, lines []*line) ([]Ref, error) {
	rows, err := conn.Query(ctx, acceptSQL, columns(lines)...)
	if err != nil {
		return nil, err
	}
	var refs []Ref
	var ord int64
	var inboxID uuid.UUID
	var hash []byte
	var outboxID *int64
	var topic *string
	_, err = pgx.ForEachRow(rows, []any{&ord, &inboxID, &hash, &outboxID, &topic}, func() error {
		l := lines[ord-1]
		l.inboxID, l.hash, l.answered = inboxID, slices.Clone(hash), true
		if outboxID != nil && *topic != "" {
			refs = append(refs, Ref{OutboxID: *outboxID, InboxID: inboxID, Topic: *topic})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, l := range lines {
		if !l.answered {
			// The statement returns a row for every line; anything else would be an ack without a row.
			return nil, fmt.Errorf("%w: the database did not answer for an event", ErrCommitUnknown)
		}
	}
	return refs, nil
}

// columns turns lines into the arrays of acceptSQL.
func columns(lines []*line) []any {
	n := len(lines)
	var (
		ids, payloadIDs                       = make([]uuid.UUID, n), make([]uuid.UUID, 0, n)
		providers, endpoints, eventIDs, types = make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		objects, coalesce                     = make([]*string, n), make([]*string, n)
		versions                              = make([]*int64, n)
		created                               = make([]*time.Time, n)
		received                              = make([]time.Time, n)
		refs, secretVersions                  = make([]string, n), make([]string, n)
		indexes                               = make([]int32, n)
		hashes                                = make([][]byte, n)
		duplicates                            = make([]int64, n)
		seqs                                  = make([]int16, 0, n)
		pieces                                = make([][]byte, 0, n)
		sent                                  = make(map[*item]bool, n)
	)
	for i, l := range lines {
		r, ev := l.it.receipt, &l.it.receipt.Events[l.event]
		ids[i], providers[i], endpoints[i], eventIDs[i], types[i] = l.it.ids[l.event], r.Provider, r.EndpointID, ev.ProviderEventID, ev.Type
		if ev.ObjectID != "" {
			objects[i] = &ev.ObjectID
		}
		if ev.CoalesceKey != "" {
			coalesce[i] = &ev.CoalesceKey
		}
		versions[i] = ev.ObjectVersion
		if !ev.CreatedAt.IsZero() {
			created[i] = &ev.CreatedAt
		}
		received[i], refs[i], indexes[i] = r.ReceivedAt, l.it.ref, int32(ev.Index)
		hashes[i], secretVersions[i], duplicates[i] = l.it.hash[:], r.MatchedSecretVersion, l.duplicates
		if sent[l.it] {
			continue
		}
		sent[l.it] = true
		for seq, piece := range l.it.pieces {
			payloadIDs, seqs, pieces = append(payloadIDs, l.it.payloadID), append(seqs, int16(seq)), append(pieces, piece)
		}
	}
	return []any{ids, providers, endpoints, eventIDs, types, objects, versions, created, received, refs, indexes, hashes,
		secretVersions, duplicates, payloadIDs, seqs, pieces, coalesce}
}

// answer tells every item what became of its events.
func (s *Store) answer(items []*item, arrivals [][]arrival) {
	for i, it := range items {
		accepted := make([]Accepted, len(arrivals[i]))
		for e, a := range arrivals[i] {
			fresh := a.leads && a.line.inboxID == it.ids[e]
			accepted[e] = Accepted{
				InboxID:         a.line.inboxID,
				Duplicate:       !fresh,
				PayloadConflict: !fresh && it.receipt.Events[e].CoalesceKey == "" && !slices.Equal(a.line.hash, it.hash[:]),
			}
			if accepted[e].PayloadConflict {
				s.metrics.payloadConflicts.Inc()
				s.log.Warn().Str("inbox_id", a.line.inboxID.String()).Str("endpoint", it.receipt.EndpointID).
					Str("provider", it.receipt.Provider).Msg("receipt.payload_conflicted")
			}
		}
		it.finish(accepted, nil)
	}
}
