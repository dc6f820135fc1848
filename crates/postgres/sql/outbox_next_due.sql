-- Plan: Index Scan using outbox_due on outbox
select ceil(extract(epoch from coalesce(lease_expires_at, due_at) - {schema}.clock()) * 1000000)::bigint as due_in
from {schema}.outbox
order by coalesce(lease_expires_at, due_at), id limit 1
