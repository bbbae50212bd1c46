-- +goose Up
create schema if not exists accounts;

-- One row per connected account: its state as the provider gave it last.
create table accounts.account (
  endpoint_id     text        not null,
  account_id      text        not null,
  charges_enabled boolean     not null,
  payouts_enabled boolean     not null,
  -- What the provider wants to know before it goes on paying; people work through the accounts where it is not empty.
  due             text[]      not null,
  closed          boolean     not null,
  event_id        text        not null,
  updated_at      timestamptz not null,
  primary key (endpoint_id, account_id)
);

create index account_due_idx on accounts.account (updated_at) where due <> '{}' and not closed;

-- +goose Down
drop table accounts.account;
