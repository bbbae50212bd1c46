-- +goose Up
create schema if not exists subscriptions;

-- One row per subscription: its newest known state. applied_count is how many events have changed it.
create table subscriptions.subscription_state (
  endpoint_id      text        not null,
  subscription_id  text        not null,
  customer_id      text        not null,
  status           text        not null,
  event_id         text        not null,
  event_created_at timestamptz not null,
  applied_count    bigint      not null,
  updated_at       timestamptz not null,
  primary key (endpoint_id, subscription_id)
);

-- +goose Down
drop table subscriptions.subscription_state;
