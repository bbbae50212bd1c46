-- +goose Up
create schema if not exists disputes;

-- One row per dispute: its newest known state.
create table disputes.dispute (
  endpoint_id text        not null,
  dispute_id  text        not null,
  charge_id   text        not null,
  status      text        not null,
  reason      text        not null,
  amount      bigint      not null,
  currency    text        not null,
  -- Evidence that comes later is not read any more.
  evidence_by timestamptz,
  event_id    text        not null,
  updated_at  timestamptz not null,
  primary key (endpoint_id, dispute_id)
);

-- +goose Down
drop table disputes.dispute;
