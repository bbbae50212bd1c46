-- +goose Up
create schema if not exists refunds;

-- One row per refund: its newest known state.
create table refunds.refund (
  endpoint_id      text        not null,
  refund_id        text        not null,
  charge_id        text        not null,
  status           text        not null,
  amount           bigint      not null,
  currency         text        not null,
  event_id         text        not null,
  event_created_at timestamptz not null,
  primary key (endpoint_id, refund_id)
);

create index refund_charge_idx on refunds.refund (endpoint_id, charge_id);

-- What of a charge has gone back is counted from the rows, not kept in a column: a sum that each event adds to would be
-- wrong as soon as one event overtakes another.
create view refunds.refunded_charge as
select endpoint_id, charge_id, currency, sum(amount)::bigint as refunded
from refunds.refund where status in ('pending', 'requires_action', 'succeeded')
group by endpoint_id, charge_id, currency;

-- +goose Down
drop view refunds.refunded_charge;
drop table refunds.refund;
