-- Work that is under way or done, by idempotency key.
create table {schema}.idempotency (
  key text collate "C" not null primary key,
  -- The lease of the worker that began it last; only that worker may end it.
  lease_token bigint not null,
  completed boolean not null,
  -- When it was completed or, before that, when its lease ends. Its age counts from then.
  at timestamptz not null
);
create index idempotency_age on {schema}.idempotency (at);
