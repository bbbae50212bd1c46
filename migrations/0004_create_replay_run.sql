-- +goose Up

-- What a failure is about, apart from the event it hit: equal for failures that one repair will end. Empty where nobody said.
alter table weir.webhook_outbox add column fingerprint text not null default '';

-- Replays read FAILED deliveries in the order in which they came, groups of them by processor and fingerprint. The two indexes
-- hold the same rows under predicates of different words, so that neither is taken for the other.
drop index weir.webhook_outbox_failed_idx;
create index webhook_outbox_failed_idx on weir.webhook_outbox (outbox_id) where failed_at is not null;
create index webhook_outbox_fingerprint_idx on weir.webhook_outbox (topic, fingerprint, failed_at) where status = 'FAILED';

-- What people have said about a group of failures. A group without a row is neither owned nor held.
create table weir.failure_group (
  processor   text        not null,
  fingerprint text        not null,
  owner       text        not null default '',
  note        text        not null default '',
  held        boolean     not null default false,
  changed_at  timestamptz not null default clock_timestamp(),
  changed_by  text        not null,
  primary key (processor, fingerprint)
);

-- One row for each replay or backfill that somebody has started. Who advances it holds its row, so it has one owner at a
-- time and its rate is kept by the times in it, whichever process that is.
create table weir.replay_run (
  run_id          bigint generated always as identity primary key,
  kind            text             not null,
  filter          jsonb            not null,
  again           boolean          not null default false,
  ignore_order    boolean          not null default false,
  rate            double precision not null,
  ramp_seconds    double precision not null default 0,
  in_flight_max   bigint           not null,
  limit_max       bigint,
  budget_failed   bigint,
  budget_percent  double precision,
  state           text             not null default 'RUNNING',
  cause           text             not null default '',
  created_at      timestamptz      not null default clock_timestamp(),
  created_by      text             not null,
  reason          text             not null,
  changed_at      timestamptz      not null default clock_timestamp(),
  finished_at     timestamptz,
  -- Where the next step goes on.
  after_outbox    bigint           not null default 0,
  after_event     uuid             not null default '00000000-0000-0000-0000-000000000000',
  exhausted       boolean          not null default false,
  -- What has become of it. Open are the reopened less the done and the failed.
  examined        bigint           not null default 0,
  reopened        bigint           not null default 0,
  done            bigint           not null default 0,
  failed          bigint           not null default 0,
  payload_gone    bigint           not null default 0,
  held            bigint           not null default 0,
  -- What the error budget does not count: it was there before the last resumption.
  base_done       bigint           not null default 0,
  base_failed     bigint           not null default 0,
  -- The deliveries that may be reopened now, when they were counted last, and how long the run has run.
  tokens          double precision not null,
  advanced_at     timestamptz      not null default clock_timestamp(),
  active_seconds  double precision not null default 0,
  constraint replay_run_kind_check check (kind in ('REPLAY', 'BACKFILL')),
  constraint replay_run_state_check check (state in ('RUNNING', 'PAUSED', 'STOPPED', 'CANCELLED', 'DONE')),
  constraint replay_run_finished_check check ((finished_at is not null) = (state in ('CANCELLED', 'DONE'))),
  constraint replay_run_limits_check check (rate > 0 and ramp_seconds >= 0 and in_flight_max > 0 and limit_max > 0
    and budget_failed >= 0 and budget_percent between 0 and 100),
  constraint replay_run_counts_check check (done + failed <= reopened and base_done <= done and base_failed <= failed)
);
create index replay_run_running_idx on weir.replay_run (run_id) where state = 'RUNNING';

-- The deliveries that a run has reopened and whose end it has not counted yet: never more than its in_flight_max.
create table weir.replay_item (
  run_id   bigint not null references weir.replay_run (run_id),
  inbox_id uuid   not null,
  topic    text   not null,
  primary key (run_id, inbox_id, topic)
) with (autovacuum_vacuum_scale_factor = 0.02);
