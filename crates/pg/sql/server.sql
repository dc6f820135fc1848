select current_setting('server_version') as version, pg_catalog.pg_is_in_recovery() as is_standby,
       current_user::text as "user", current_database()::text as "database",
       pg_catalog.pg_notification_queue_usage() as notification_usage,
       (select count(*) from pg_catalog.pg_stat_activity where backend_type = 'client backend') as connections,
       current_setting('max_connections')::bigint as max_connections
