insert into {schema}.queue (name) values ($1) on conflict do nothing
