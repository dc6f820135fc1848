-- All messages of the queue, and those that are kept aside.
-- Plan: Seq Scan on {table}
-- Plan: Index Scan using delayed_queue on delayed
select count(*) filter (where m.vt <= {schema}.clock()),
       count(*) filter (where {schema}.is_leased(m.vt, m.read_ct, m.headers)),
       count(*) filter (where m.vt > {schema}.clock() and not {schema}.is_leased(m.vt, m.read_ct, m.headers)),
       {schema}.micros({schema}.clock())
         - {schema}.micros(min(m.enqueued_at) filter (where m.vt <= {schema}.clock())),
       exists (select 1 from {schema}.queue_pause where queue = $1)
from (select vt, read_ct, enqueued_at, headers from {queue}
      union all
      select due_at, 0, enqueued_at, null from {schema}.delayed where queue = $1) m
