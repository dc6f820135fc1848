-- No row if there is a record that has not expired.
insert into {schema}.state_record as r (kind, key, sequence, version, created_at, expires_at, value)
select $1, $2, change.number, change.number, {schema}.clock(),
       {schema}.clock() + $4::bigint * interval '1 microsecond', $3
from (select nextval('{schema}.state_record_change') as number) as change
on conflict (kind, key) do update
set sequence = excluded.sequence, version = excluded.version, created_at = excluded.created_at,
    expires_at = excluded.expires_at, value = excluded.value
where r.expires_at <= {schema}.clock()
returning r.sequence, r.key, r.version, r.created_at, r.expires_at, r.value
