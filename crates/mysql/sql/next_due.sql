-- In how many microseconds the next message can be received, and whether keys wait to be put in order: what a wait looks
-- at. One probe a priority.
select case when not exists (select 1 from {schema}.queue_pause where queue = :queue) then
         timestampdiff(microsecond, utc_timestamp(6), (select min(first.next_attempt_at) from (:probes) first))
       end,
       exists (select 1 from {schema}.unplaced where queue = :queue)
