select relname::text, n_live_tup, n_dead_tup, pg_catalog.pg_total_relation_size(relid),
       extract(epoch from clock_timestamp() - greatest(last_vacuum, last_autovacuum))::bigint
from pg_catalog.pg_stat_all_tables where schemaname = $1 and relname = any ($2) order by relname
