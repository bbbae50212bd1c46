package inbox

import (
	"context"
	"time"
)

const (
	effectsPageSQL = `
select e.effect_id from weir.effect e where e.effect_id > $1 and e.effect_id < $2 order by e.effect_id limit $3`

	// expireEffectsSQL deletes what is final and whose event is gone: while the event stands, its effects keep a replay from
	// sending them again.
	expireEffectsSQL = `
with p as materialized (
  select e.effect_id, e.inbox_id from unnest($1::uuid[]) as u (effect_id) join weir.effect e on e.effect_id = any (array[u.effect_id])
  where coalesce(e.data_key_id, 0) = 0
), k as materialized (
  select p.effect_id from p where not exists (select from weir.webhook_inbox i where i.inbox_id = any (array[p.inbox_id]))
)
delete from weir.effect e using k where e.effect_id = any (array[k.effect_id]) and coalesce(e.data_key_id, 0) = 0`

	// oldEffectsSQL reads effect_data_key_id_idx.
	oldEffectsSQL = `
select count(*) from weir.effect e where e.data_key_id is not null and e.created_at < $1`
)

// expireEffects deletes final effects whose events are gone. What is not final is never deleted; once it is older than
// payloads get, it is counted as kept, which raises an alarm: it holds a request and its data key.
func (s *Store) expireEffects(ctx context.Context, r Retention, now time.Time) (deleted int, err error) {
	if deleted, _, err = s.expireRows(ctx, r, now.Add(-r.Events), effectsPageSQL, expireEffectsSQL); err != nil {
		return deleted, err
	}
	var kept int
	if err := s.open.QueryRow(ctx, oldEffectsSQL, now.Add(-r.Payloads)).Scan(&kept); err != nil {
		return deleted, err
	}
	s.metrics.keptEffects.Set(float64(kept))
	if kept > 0 {
		s.log.Warn().Int("effects", kept).Msg("retention.effects_kept")
	}
	return deleted, nil
}
