-- In how many microseconds the next message can be received: what a wait looks at.
-- Plan: Index Scan using {vt_index} on {table} m
-- Plan: Index Only Scan using delayed_queue on delayed
select case when not exists (select 1 from {schema}.queue_pause where queue = $1) then
         ceil(extract(epoch from
           least((select m.vt from {queue} m
                  where not $2::boolean or m.headers->>'x-pgmq-group' is null
                     or not exists (select 1 from {queue} o
                                    where o.headers->>'x-pgmq-group' = m.headers->>'x-pgmq-group'
                                      and o.msg_id < m.msg_id)
                  order by m.vt limit 1),
                 (select due_at from {schema}.delayed where queue = $1 order by due_at limit 1)) - {schema}.clock())
              * 1000000)::bigint
       end
