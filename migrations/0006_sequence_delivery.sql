-- +goose Up

-- The order in which fetches of providers' states have begun. A number is taken before its fetch, so of two fetches the one
-- with the higher number has seen the newer state. It must never go back: who moves the database by logical replication
-- carries the sequence over.
create sequence weir.fetch_number;

-- What the head's version counts. A processor that orders by something else from now on begins anew with each object.
alter table weir.object_head
  add column kind text not null default 'VERSION',
  -- A sequence's first missing version, while it is to be asked for: how often it was, and when it will be.
  add column gap_from   bigint,
  add column gap_asks   integer not null default 0,
  add column gap_ask_at timestamptz,
  add constraint object_head_kind_check check (kind in ('VERSION', 'FETCH', 'SEQUENCE')) not valid,
  add constraint object_head_gap_check check (gap_ask_at is null or gap_from is not null) not valid;
create index object_head_gap_ask_at_idx on weir.object_head (gap_ask_at) where gap_ask_at is not null;

-- A delivery of a sequence whose earlier versions are missing is WAITING under its topic, with the time until which it may.
-- No other row has these columns.
alter table weir.webhook_outbox
  add column endpoint_id    text,
  add column object_id      text,
  add column object_version bigint,
  add column gap_until      timestamptz,
  add column gap_ends       text,
  drop constraint webhook_outbox_waiting_check,
  add constraint webhook_outbox_waiting_check check (
    (status = 'WAITING') = (topic = '' or gap_until is not null) and (topic <> '' or gap_until is null)),
  add constraint webhook_outbox_gap_check check (
    num_nonnulls(endpoint_id, object_id, object_version, gap_until, gap_ends) in (0, 5)),
  add constraint webhook_outbox_gap_ends_check check (gap_ends in ('FAIL', 'SKIP'));

-- What no subscription wants yet, apart from what waits in a sequence.
drop index weir.webhook_outbox_waiting_idx;
create index webhook_outbox_waiting_idx on weir.webhook_outbox (outbox_id) where status = 'WAITING' and topic = '';
-- The waiting deliveries of one object in the order of their versions, and those whose time is over.
create index webhook_outbox_sequence_idx on weir.webhook_outbox (endpoint_id, object_id, object_version)
  where object_version is not null;
create index webhook_outbox_gap_until_idx on weir.webhook_outbox (gap_until) where status = 'WAITING' and topic <> '';
