-- +goose Up

-- What the senders of effects need to know. The open part of the table (everything but DONE and DISCARDED) is read through
-- partial indexes; a finished row is never read again but by its key, and gives its request and its data key back.
alter table weir.effect
  add column effect_seq      bigint generated always as identity,
  add column kind            text    not null default '',
  add column destination     text    not null default '',
  add column order_key       text,
  add column request_hash    bytea   not null default ''::bytea,
  add column data_key_id     integer,
  add column response_status integer,
  add column in_doubt_since  timestamptz,
  add column asked_count     integer not null default 1,
  add column differing_count integer not null default 0,
  alter column request drop not null;
update weir.effect set data_key_id = ('x' || encode(substring(request from 3 for 4), 'hex'))::bit(32)::integer;
alter table weir.effect
  drop constraint effect_status_check,
  drop constraint effect_finished_check,
  add constraint effect_status_check check (
    status in ('PENDING', 'IN_DOUBT', 'WAITING', 'HELD', 'DONE', 'FAILED', 'DISCARDED')),
  add constraint effect_finished_check check ((finished_at is not null) = (status in ('DONE', 'FAILED', 'DISCARDED'))),
  add constraint effect_leased_check check (lease_token is null or status in ('PENDING', 'IN_DOUBT')),
  add constraint effect_in_doubt_check check (status <> 'IN_DOUBT' or in_doubt_since is not null),
  add constraint effect_waiting_check check (status <> 'WAITING' or order_key is not null),
  add constraint effect_request_check check (request is not null or status in ('DONE', 'DISCARDED')),
  add constraint effect_data_key_check check ((data_key_id is null) = (request is null));
alter table weir.effect set (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
  autovacuum_vacuum_cost_delay = 0);

-- The claim: what is due. A lease moves next_attempt_at to its own end, so that what is leased does not stand in the way
-- and what a dead process has left is due by itself.
create index effect_next_attempt_at_idx on weir.effect (next_attempt_at) where status in ('PENDING', 'IN_DOUBT');
-- The unfinished effects of one order key, in order.
create index effect_order_key_idx on weir.effect (processor, order_key, effect_seq)
  where order_key is not null and status not in ('DONE', 'DISCARDED');
create index effect_held_idx on weir.effect (destination, effect_seq) where status = 'HELD';
create index effect_waiting_idx on weir.effect (effect_seq) where status = 'WAITING';
-- What is not final: it holds a request, sealed under a data key, which is not destroyed before.
create index effect_data_key_id_idx on weir.effect (data_key_id, effect_seq) where data_key_id is not null;

-- Destinations that asked not to be called any more: their effects are HELD until an operator enables them again.
create table weir.effect_destination (
  destination text primary key,
  disabled_at timestamptz not null default clock_timestamp(),
  disabled_by text not null,
  reason      text not null
);
