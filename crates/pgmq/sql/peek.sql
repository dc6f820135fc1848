-- In send order; delayed messages count from their send.
-- Plan: Index Scan using {primary_key} on {table}
-- Plan: Index Scan using delayed_pkey on delayed
select msg_id, message, headers, read_ct, enqueued_at, vt, vt > {schema}.clock() as is_not_due,
       {schema}.is_leased(vt, read_ct, headers) as is_leased
from ((select msg_id, message, headers, read_ct, enqueued_at, vt from {queue} order by msg_id limit $2)
      union all
      (select 0, message, headers, 0, enqueued_at, due_at from {schema}.delayed where queue = $1 order by id limit $2)) m
order by enqueued_at, msg_id limit $2
