-- What a claim can take: whether the queue is paused, whether keys wait to be promoted, and when the first message of
-- each priority became due. One probe a priority: neither a backlog of another queue nor messages that are delayed or
-- leased are walked. Locks nothing, and an empty poll ends here.
select exists (select 1 from {schema}.queue_pause where queue = :queue) as is_paused,
       exists (select 1 from {schema}.unplaced where queue = :queue) as has_unplaced, :probes
