-- +goose Up
create schema if not exists payments;

-- One row per payment: its newest known state. applied_count is how many events have changed it.
create table payments.payment_state (
  endpoint_id      text        not null,
  payment_id       text        not null,
  status           text        not null,
  amount           bigint      not null,
  currency         text        not null,
  event_id         text        not null,
  event_created_at timestamptz not null,
  applied_count    bigint      not null,
  updated_at       timestamptz not null,
  primary key (endpoint_id, payment_id)
);

-- +goose Down
drop table payments.payment_state;
