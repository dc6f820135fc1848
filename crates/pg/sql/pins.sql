-- What keeps dead rows of this database from being removed, but for vacuum's own sessions.
select kind, name, details, seconds, age, active
from (
  select 'session' as kind, a.pid::text as name,
         concat_ws(', ', 'user ' || a.usename, 'application ' || nullif(a.application_name, ''),
                   'from ' || host(a.client_addr), a.state) as details,
         extract(epoch from clock_timestamp() - a.xact_start)::bigint as seconds,
         greatest(age(a.backend_xid), age(a.backend_xmin))::bigint as age, true as active
  from pg_catalog.pg_stat_activity a
  where (a.backend_xid is not null or a.backend_xmin is not null) and a.pid <> pg_backend_pid()
    and (a.datname is null or a.datname = current_database())
    -- Null for sessions of other roles that this role cannot see.
    and coalesce(a.backend_type, '') not in ('autovacuum worker', 'walsender')
  union all
  select 'prepared transaction', p.gid, 'owner ' || p.owner,
         extract(epoch from clock_timestamp() - p.prepared)::bigint, age(p.transaction)::bigint, true
  from pg_catalog.pg_prepared_xacts p where p.database = current_database()
  union all
  select 'replication slot', s.slot_name, s.slot_type, null, greatest(age(s.xmin), age(s.catalog_xmin))::bigint, s.active
  from pg_catalog.pg_replication_slots s where s.xmin is not null or s.catalog_xmin is not null
  union all
  select 'standby', r.pid::text, coalesce(nullif(r.application_name, ''), 'of user ' || r.usename), null,
         age(r.backend_xmin)::bigint, true
  from pg_catalog.pg_stat_replication r where r.backend_xmin is not null) pins
where seconds is null or seconds >= $1
order by age desc nulls last limit 5
