select pg_notify($1, queue) from unnest($2::text[]) as queue
