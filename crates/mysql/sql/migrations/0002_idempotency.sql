-- Work that is under way or done, by idempotency key.
create table if not exists {schema}.idempotency (
  name varbinary(512) not null primary key,
  -- The lease of the worker that began it last; only that worker may end it.
  lease_token bigint not null,
  completed boolean not null,
  -- When it was completed or, before that, when its lease ends. Its age counts from then.
  at datetime(6) not null,
  index idempotency_age (at)
) engine = InnoDB;
