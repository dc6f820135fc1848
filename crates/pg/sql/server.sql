select current_setting('server_version'), pg_catalog.pg_is_in_recovery(), current_user::text, current_database()::text,
       pg_catalog.pg_notification_queue_usage(),
       (select count(*) from pg_catalog.pg_stat_activity where backend_type = 'client backend'),
       current_setting('max_connections')::bigint
