select coalesce(pg_catalog.current_schema()::text = $1, false), pg_catalog.current_setting('search_path'), current_user::text
