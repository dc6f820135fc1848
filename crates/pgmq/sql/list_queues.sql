select distinct lower(queue_name)::text from pgmq.meta order by 1
