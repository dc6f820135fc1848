-- Who has these idempotency keys, and whether these ids are taken.
-- Plan: Index Scan using task_idempotency on task k
-- Plan: Index Only Scan using task_identity on task i
select s.place, k.task_id, k.state::text, exists (select 1 from {schema}.task i where i.task_id = s.task_id)
from unnest($1::bigint[], $2::text[], $3::text[], $4::uuid[]) as s (place, task_type, idempotency_key, task_id)
left join {schema}.task k on k.task_type = s.task_type and k.idempotency_key = s.idempotency_key
                         and k.idempotency_key is not null
