select coalesce(pg_catalog.current_schema()::text = $1, false) as is_ours,
       pg_catalog.current_setting('search_path') as search_path, current_user::text as role
