-- Work that is under way or was done, by the keys that it is known by.
create table {schema}.idempotency (
  key text collate "C" not null primary key,
  -- Of the last one who began it: only that one may end it.
  lease_token bigint not null,
  completed boolean not null,
  -- When it was done; while it is not, when its lease ends. Either way, what its age is counted from.
  at timestamptz not null
);
create index idempotency_age on {schema}.idempotency (at);
