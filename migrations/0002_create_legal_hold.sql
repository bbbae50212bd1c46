-- +goose Up

-- What must not be deleted: one event, or everything of an endpoint, until the hold is released.
create table weir.legal_hold (
  hold_id     bigint generated always as identity primary key,
  endpoint_id text,
  inbox_id    uuid,
  held_at     timestamptz not null default clock_timestamp(),
  held_by     text        not null,
  reason      text        not null,
  released_at timestamptz,
  released_by text,
  constraint legal_hold_subject_check check (num_nonnulls(endpoint_id, inbox_id) = 1),
  constraint legal_hold_released_check check ((released_at is null) = (released_by is null))
);
create unique index legal_hold_endpoint_id_idx on weir.legal_hold (endpoint_id) where released_at is null;
create unique index legal_hold_inbox_id_idx on weir.legal_hold (inbox_id) where released_at is null;
