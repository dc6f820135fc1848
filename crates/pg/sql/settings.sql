select name, setting from pg_catalog.pg_settings
where name in ('fsync', 'synchronous_commit', 'full_page_writes', 'autovacuum',
               'default_transaction_read_only', 'track_counts')
