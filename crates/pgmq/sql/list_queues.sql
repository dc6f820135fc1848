select distinct lower(queue_name)::text as name from pgmq.meta order by 1
