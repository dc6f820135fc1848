-- The numbers of all changes: a record that is removed and made again has another version.
create sequence {schema}.state_record_change;

-- Small records that are neither messages nor tasks, by their kinds and keys.
create table {schema}.state_record (
  kind text collate "C" not null,
  key text collate "C" not null,
  -- The change that created it; ascends in the order of creation.
  sequence bigint not null,
  -- The last change.
  version bigint not null,
  created_at timestamptz not null,
  -- The record is absent from then on; null is never.
  expires_at timestamptz,
  value bytea not null,
  primary key (kind, key)
);
create unique index state_record_order on {schema}.state_record (kind, sequence);
create index state_record_expiry on {schema}.state_record (expires_at) where expires_at is not null;
