-- How many of each priority a claim should take: one probe a priority, so that neither a backlog of another queue nor
-- messages that are delayed or leased are ever walked. It locks nothing, and an empty poll ends here.
select chosen.priority, count(*)
from (select due.priority from (:probes) due order by :order limit :limit) chosen
where not exists (select 1 from {schema}.queue_pause where queue = :queue)
group by chosen.priority
