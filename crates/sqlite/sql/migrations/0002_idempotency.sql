-- Idempotency records: work that is under way or done, by its key.
create table idempotency (
  key text not null primary key,
  -- The lease of the last caller that began the work; only it may end the work.
  lease_token integer not null,
  completed integer not null,
  -- When the work was done or, while it is not, when its lease ends. The age of the record counts from it.
  at integer not null
) without rowid;

create index idempotency_age on idempotency (at);
