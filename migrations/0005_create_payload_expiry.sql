-- +goose Up

-- How far the payloads of an endpoint that keeps them for a shorter time are gone, day by day: no day is read again for
-- nothing. Rows go with their day.
create table weir.payload_expiry (
  day         date        not null,
  endpoint_id text        not null,
  through     uuid        not null,
  kept        integer     not null default 0,
  finished_at timestamptz,
  primary key (day, endpoint_id)
);
