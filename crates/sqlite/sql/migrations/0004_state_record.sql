-- Small records that are neither messages nor tasks, by their kinds and keys.
create table state_record (
  -- The change that it was made by: ascends in the order of creation.
  sequence integer not null primary key,
  kind text not null,
  key text not null,
  -- The change that it was last changed by.
  version integer not null,
  created_at integer not null,
  -- From then on it is absent; null is never.
  expires_at integer,
  value blob not null
);

create unique index state_record_key on state_record (kind, key);
create index state_record_order on state_record (kind, sequence);
create index state_record_expiry on state_record (expires_at) where expires_at is not null;

-- The number of the last change, of every record. It outlives them: a record that is removed and made again must not be
-- taken for the one before.
create table state_record_change (last integer not null);
insert into state_record_change values (0);
