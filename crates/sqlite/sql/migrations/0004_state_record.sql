-- Small records that are neither messages nor tasks, by kind and key.
create table state_record (
  -- The number of the change that created it; ascends in the order of creation.
  sequence integer not null primary key,
  kind text not null,
  key text not null,
  -- The number of its last change.
  version integer not null,
  created_at integer not null,
  -- The time from which on it counts as absent; null is never.
  expires_at integer,
  value blob not null
);

create unique index state_record_key on state_record (kind, key);
create index state_record_order on state_record (kind, sequence);
create index state_record_expiry on state_record (expires_at) where expires_at is not null;

-- The number of the last change of any record. It outlives the records, so that a record that is removed and created
-- again has another version.
create table state_record_change (last integer not null);
insert into state_record_change values (0);
