unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[], $7::timestamptz[]) as urgency (priority, floor)
  cross join lateral (
    select m.ctid as row_ctid, m.next_attempt_at as due,
           case when not $5::boolean then null
                when m.expires_at <= {schema}.clock() then 'expired'
                when m.deliveries_count >= $6 then 'max_receive_count' end as death
    from {schema}.message m
    where m.queue = $1 and not m.blocked and m.priority = urgency.priority
      and m.next_attempt_at >= urgency.floor and m.next_attempt_at <= {schema}.clock()
    order by m.next_attempt_at limit $2 for update skip locked) found
