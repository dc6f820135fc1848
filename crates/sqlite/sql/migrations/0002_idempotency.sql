-- Work that is under way or was done, by the keys that it is known by.
create table idempotency (
  key text not null primary key,
  -- Of the last one who began it: only that one may end it.
  lease_token integer not null,
  completed integer not null,
  -- When it was done; while it is not, when its lease ends. Either way, what its age is counted from.
  at integer not null
) without rowid;

create index idempotency_age on idempotency (at);
