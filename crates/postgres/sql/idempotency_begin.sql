-- No row if the work is done or under way.
insert into {schema}.idempotency as i (key, lease_token, completed, at)
values ($1, $2, false, {schema}.clock() + $3::bigint * interval '1 microsecond')
on conflict (key) do update set lease_token = excluded.lease_token, at = excluded.at
where not i.completed and i.at <= {schema}.clock()
returning lease_token
