-- All messages of the queue, and its delayed ones.
-- Plan: Seq Scan on {table}
-- Plan: Index Scan using delayed_queue on delayed
select count(*) filter (where m.vt <= {schema}.clock()) as ready,
       count(*) filter (where {schema}.is_leased(m.vt, m.read_ct, m.headers)) as in_flight,
       count(*) filter (where m.vt > {schema}.clock() and not {schema}.is_leased(m.vt, m.read_ct, m.headers)) as delayed,
       {schema}.micros({schema}.clock())
         - {schema}.micros(min(m.enqueued_at) filter (where m.vt <= {schema}.clock())) as oldest_micros,
       exists (select 1 from {schema}.queue_pause where queue = $1) as is_paused
from (select vt, read_ct, enqueued_at, headers from {queue}
      union all
      select due_at, 0, enqueued_at, null from {schema}.delayed where queue = $1) m
