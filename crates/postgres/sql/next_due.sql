-- In how many microseconds the next message is due, if that is before the next look; whether keys wait to be promoted;
-- the server's clock. One probe a priority.
-- Plan: Index Only Scan using message_claim on message
-- Plan: Index Only Scan using unplaced_queue on unplaced
select case when not exists (select 1 from {schema}.queue_pause where queue = $1) then
         (select ceil(extract(epoch from min(first.due) - {schema}.clock()) * 1000000)::bigint
          from unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[], $2::timestamptz[]) as urgency (priority, floor)
          cross join lateral (select next_attempt_at as due from {schema}.message
                              where queue = $1 and not blocked and priority = urgency.priority
                                and next_attempt_at >= urgency.floor
                                and next_attempt_at <= {schema}.clock() + $3::bigint * interval '1 microsecond'
                              order by next_attempt_at limit 1) first)
       end as due_in,
       exists (select 1 from {schema}.unplaced where queue = $1) as has_unplaced, {schema}.clock() as now
