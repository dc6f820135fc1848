-- Work that is under way or was done, by the keys that it is known by.
create table if not exists {schema}.idempotency (
  name varbinary(512) not null primary key,
  -- Of the last one who began it: only that one may end it.
  lease_token bigint not null,
  completed boolean not null,
  -- When it was done; while it is not, when its lease ends. Either way, what its age is counted from.
  at datetime(6) not null,
  index idempotency_age (at)
) engine = InnoDB;
