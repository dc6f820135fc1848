select relname::text as name, n_live_tup as live, n_dead_tup as dead,
       pg_catalog.pg_total_relation_size(relid) as bytes,
       extract(epoch from clock_timestamp() - greatest(last_vacuum, last_autovacuum))::bigint as vacuum_seconds
from pg_catalog.pg_stat_all_tables where schemaname = $1 and relname = any ($2) order by relname
