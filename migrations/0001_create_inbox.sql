-- +goose Up

-- One row per logical event: metadata only, written once and closed by one update. No index names a column that changes,
-- and half of each page stays free, so that the closing update is heap-only.
create table weir.webhook_inbox (
  inbox_id               uuid primary key,
  provider               text        not null,
  endpoint_id            text        not null,
  provider_event_id      text        not null,
  event_type             text        not null,
  object_id              text,
  object_version         bigint,
  provider_created_at    timestamptz,
  received_at            timestamptz not null,
  raw_payload_ref        text        not null,
  payload_index          integer     not null default 0,
  payload_hash           bytea       not null,
  matched_secret_version text        not null,
  duplicate_count        bigint      not null default 0,
  last_seen_at           timestamptz not null,
  open_deliveries        integer     not null,
  failed_deliveries      integer     not null default 0,
  status                 text        not null default 'PENDING',
  finished_at            timestamptz,
  constraint webhook_inbox_event_key unique (provider, endpoint_id, provider_event_id),
  constraint webhook_inbox_status_check check (status in ('PENDING', 'PROCESSED', 'FAILED')),
  constraint webhook_inbox_finished_check check ((finished_at is not null) = (status in ('PROCESSED', 'FAILED'))),
  constraint webhook_inbox_counters_check check (
    open_deliveries >= 0 and failed_deliveries >= 0 and duplicate_count >= 0
    and (status = 'PENDING') = (open_deliveries > 0)
    and (status <> 'PROCESSED' or failed_deliveries = 0)
    and (status <> 'FAILED' or failed_deliveries > 0)),
  constraint webhook_inbox_hash_check check (octet_length(payload_hash) = 32)
) with (fillfactor = 50, autovacuum_analyze_scale_factor = 0.05);

-- Sealed raw bytes and kept headers, one payload per receipt, cut into pieces that fit a page. Partitioned by the day in
-- the version 7 id, so that retention is dropping a partition. The default partition catches what no day covers.
create table weir.webhook_payload (
  payload_id uuid     not null,
  seq        smallint not null,
  sealed     bytea    not null,
  primary key (payload_id, seq),
  constraint webhook_payload_size_check check (octet_length(sealed) <= 8090)
) partition by range (payload_id);
alter table weir.webhook_payload alter column sealed set storage plain;
create table weir.webhook_payload_default partition of weir.webhook_payload default with (toast_tuple_target = 8160);

-- Everything accepted and not yet finished: one row per event and processor, small whatever the size of the inbox.
create table weir.webhook_outbox (
  outbox_id       bigint generated always as identity primary key,
  inbox_id        uuid        not null,
  topic           text        not null,
  created_at      timestamptz not null default clock_timestamp(),
  published_at    timestamptz,
  stream_id       text,
  stream_epoch    text,
  attempt_count   integer     not null default 0,
  next_attempt_at timestamptz not null default clock_timestamp(),
  lease_until     timestamptz,
  lease_token     uuid,
  status          text        not null default 'PENDING',
  last_error      text,
  failed_at       timestamptz,
  constraint webhook_outbox_delivery_key unique (inbox_id, topic),
  constraint webhook_outbox_status_check check (status in ('PENDING', 'WAITING', 'FAILED')),
  constraint webhook_outbox_lease_check check ((lease_until is null) = (lease_token is null)),
  constraint webhook_outbox_leased_check check (lease_token is null or status = 'PENDING'),
  constraint webhook_outbox_failed_check check ((failed_at is not null) = (status = 'FAILED')),
  constraint webhook_outbox_waiting_check check ((status = 'WAITING') = (topic = '')),
  constraint webhook_outbox_attempts_check check (attempt_count >= 0)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);

-- The relay's claim: what is due and stands in no stream. Leases touch none of its columns, so they stay heap-only.
create index webhook_outbox_next_attempt_at_idx on weir.webhook_outbox (next_attempt_at)
  where status = 'PENDING' and published_at is null;
-- Direct mode's claim and the pages of the reconciler, topic by topic in arrival order.
create index webhook_outbox_topic_outbox_id_idx on weir.webhook_outbox (topic, outbox_id) where status = 'PENDING';

-- What no subscription wants yet, and what an operator must look at.
create index webhook_outbox_waiting_idx on weir.webhook_outbox (outbox_id) where status = 'WAITING';
create index webhook_outbox_failed_idx on weir.webhook_outbox (topic, outbox_id) where status = 'FAILED';

-- Level triggers without an id: while a row stands here, further triggers of the same key join its event. The first lease of
-- that event removes it, before the processor can have read the provider's state.
create table weir.coalesce_head (
  provider     text not null,
  endpoint_id  text not null,
  coalesce_key text not null,
  inbox_id     uuid not null,
  last_seen_at timestamptz not null,
  primary key (provider, endpoint_id, coalesce_key)
);
create index coalesce_head_inbox_id_idx on weir.coalesce_head (inbox_id);

-- One row per finished delivery, written once: the durable guard against a second application.
create table weir.processed_event (
  processor         text        not null,
  provider          text        not null,
  endpoint_id       text        not null,
  provider_event_id text        not null,
  inbox_id          uuid        not null,
  outcome           text        not null,
  attempt_count     integer     not null,
  processed_at      timestamptz not null default clock_timestamp(),
  primary key (processor, provider, endpoint_id, provider_event_id),
  constraint processed_event_outcome_check check (outcome in ('PROCESSED', 'SUPERSEDED', 'SKIPPED', 'DISCARDED'))
);
create index processed_event_inbox_id_idx on weir.processed_event (inbox_id);

-- Who wants what. Patterns are literal but for '*'; the generated columns hold them as LIKE patterns.
create table weir.subscription (
  processor        text        not null,
  provider         text        not null,
  endpoint_pattern text        not null,
  type_pattern     text        not null,
  since            timestamptz not null default '-infinity',
  endpoint_like    text generated always as (
    replace(replace(replace(replace(endpoint_pattern, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%')) stored,
  type_like        text generated always as (
    replace(replace(replace(replace(type_pattern, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%')) stored,
  primary key (processor, provider, endpoint_pattern, type_pattern),
  constraint subscription_processor_check check (processor <> '')
);

create table weir.processor_setting (
  processor  text primary key,
  paused     boolean     not null default false,
  tuning     jsonb       not null default '{}',
  changed_at timestamptz not null default clock_timestamp(),
  changed_by text        not null,
  reason     text        not null
);

-- The last applied version of every object that a version-ordered processor has seen.
create table weir.object_head (
  processor   text        not null,
  provider    text        not null,
  endpoint_id text        not null,
  object_id   text        not null,
  version     bigint      not null,
  updated_at  timestamptz not null default clock_timestamp(),
  primary key (processor, provider, endpoint_id, object_id)
) with (fillfactor = 70);

-- One row per remote side effect, written in the completion transaction and sent afterwards under one idempotency key.
create table weir.effect (
  effect_id       uuid primary key,
  inbox_id        uuid        not null,
  processor       text        not null,
  step            text        not null,
  idempotency_key text        not null unique,
  request         bytea       not null,
  created_at      timestamptz not null default clock_timestamp(),
  attempt_count   integer     not null default 0,
  next_attempt_at timestamptz not null default clock_timestamp(),
  lease_until     timestamptz,
  lease_token     uuid,
  status          text        not null default 'PENDING',
  last_error      text,
  finished_at     timestamptz,
  unique (inbox_id, processor, step),
  constraint effect_status_check check (status in ('PENDING', 'IN_DOUBT', 'DONE', 'FAILED')),
  constraint effect_lease_check check ((lease_until is null) = (lease_token is null)),
  constraint effect_finished_check check ((finished_at is not null) = (status in ('DONE', 'FAILED')))
);

-- The day's data key, wrapped by the key-encryption key that the keyring holds.
create table weir.data_key (
  data_key_id integer generated always as identity primary key,
  day         date        not null unique,
  wrapped     bytea       not null,
  created_at  timestamptz not null default clock_timestamp()
);

-- Audit of what operators did; append only.
create table weir.operator_action (
  action_id  bigint generated always as identity primary key,
  at         timestamptz not null default clock_timestamp(),
  operator   text        not null,
  action     text        not null,
  reason     text        not null,
  inbox_id   uuid,
  topic      text,
  detail     jsonb       not null default '{}'
);
create index operator_action_inbox_id_idx on weir.operator_action (inbox_id) where inbox_id is not null;

-- +goose StatementBegin
create function weir.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'weir.% is append only', tg_table_name using errcode = 'raise_exception';
end
$$;
-- +goose StatementEnd
create trigger operator_action_append_only before update or delete on weir.operator_action
  for each row execute function weir.refuse_change();

create table weir.secret_sighting (
  endpoint_id     text        not null,
  secret_version  text        not null,
  last_matched_at timestamptz not null,
  primary key (endpoint_id, secret_version)
);
