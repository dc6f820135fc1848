select t.name || ': ' || r.name as lacking
from unnest($2::text[]) as t (name)
cross join unnest('{select,insert,update,delete}'::text[]) as r (name)
join pg_catalog.pg_class c on c.relname = t.name
join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = $1
where not pg_catalog.has_table_privilege(c.oid, r.name)
