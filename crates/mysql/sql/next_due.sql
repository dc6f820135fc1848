-- In how many microseconds the next message is due, and whether keys wait to be promoted. One probe a priority.
select case when not exists (select 1 from {schema}.queue_pause where queue = :queue) then
         timestampdiff(microsecond, utc_timestamp(6), (select min(first.next_attempt_at) from (:probes) first))
       end as due_in,
       exists (select 1 from {schema}.unplaced where queue = :queue) as has_unplaced
