package processorstest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/processors"
)

// Result is what one event has done.
type Result struct {
	// Outcome is what became of the event: PROCESSED, SUPERSEDED, SKIPPED, FAILED, PENDING where it is to be tried again,
	// WAITING where it waits for an earlier one, or "" if no processor wants it.
	Outcome string
	// Verdict is that of the last attempt, Reason the text that an operator sees; "" where there is none.
	Verdict processors.Verdict
	Reason  string
	// Effects are the effects that the handler has asked for, one line each: step, kind, destination and idempotency key.
	Effects []string
	// Rows are the changes in the team's tables, one line each: "+" a new row, "-" a row that is gone or was changed.
	Rows []string
}

// String has one line for each fact.
func (r Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "outcome: %s\n", orNone(r.Outcome))
	if r.Reason != "" {
		fmt.Fprintf(&b, "reason:  %s\n", r.Reason)
	}
	for _, e := range r.Effects {
		fmt.Fprintf(&b, "effect:  %s\n", e)
	}
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "row:     %s\n", row)
	}
	return b.String()
}

// Run delivers one event to processors with empty tables and returns what it has done.
func Run(t testing.TB, register func(*processors.Registry) error, ev Event) Result {
	t.Helper()
	return New(t, register).Run(ev)
}

// Run delivers one event and returns what it has done. Where several processors want it, Outcome, Verdict and Reason are
// those of the one that was registered last.
func (h *Harness) Run(ev Event) Result {
	h.t.Helper()
	rows, effects, attempts := h.rows(), h.effects(), len(h.Attempts())
	h.Deliver(ev)
	var r Result
	for _, spec := range h.runner.Specs() {
		if outcome := h.Outcome(spec.Name, ev.ID); outcome != "" {
			r.Outcome = outcome
		}
	}
	if all := h.Attempts(); len(all) > attempts {
		last := all[len(all)-1]
		r.Verdict, r.Reason = last.Verdict, last.Reason
	}
	r.Rows = difference(rows, h.rows())
	for _, line := range difference(effects, h.effects()) {
		if made, ok := strings.CutPrefix(line, "+ "); ok {
			r.Effects = append(r.Effects, made)
		}
	}
	return r
}

// rows are all rows of the teams' tables as text.
func (h *Harness) rows() []string {
	h.t.Helper()
	var schemas []string
	for _, team := range h.registry.Teams() {
		schemas = append(schemas, team.Name)
	}
	var all []string
	for _, table := range h.texts(`select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = any ($1) and c.relkind in ('r', 'p') and not c.relispartition order by 1`, schemas) {
		for _, row := range h.texts(`select to_jsonb(r)::text from ` + table + ` r`) {
			all = append(all, table+" "+row)
		}
	}
	return all
}

// effects are the effects that handlers have asked for as text, in the order in which they did.
func (h *Harness) effects() []string {
	h.t.Helper()
	return h.texts(`select concat_ws(' ', step, kind, destination, idempotency_key) from weir.effect order by effect_id`)
}

func (h *Harness) texts(sql string, args ...any) []string {
	h.t.Helper()
	rows, err := h.pool.Query(h.t.Context(), sql, args...)
	if err != nil {
		h.t.Fatal(err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		h.t.Fatal(err)
	}
	return texts
}

// difference has a line "- row" for each row that is gone and "+ row" for each that has come.
func difference(before, after []string) (lines []string) {
	left := slices.Clone(after)
	for _, row := range before {
		if at := slices.Index(left, row); at >= 0 {
			left = slices.Delete(left, at, at+1)
			continue
		}
		lines = append(lines, "- "+row)
	}
	for _, row := range left {
		lines = append(lines, "+ "+row)
	}
	return lines
}
