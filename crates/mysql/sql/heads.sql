-- What a claim can take: whether the queue is paused, whether keys wait to be put in order, and when the first message of
-- each priority became due, the most urgent first. One probe a priority, so that neither a backlog of another queue nor
-- messages that are delayed or leased are ever walked. It locks nothing, and an empty poll ends here.
select exists (select 1 from {schema}.queue_pause where queue = :queue),
       exists (select 1 from {schema}.unplaced where queue = :queue), :probes
