-- The holders of these idempotency keys, and whether these ids are taken.
-- Plan: Index Scan using task_idempotency on task k
-- Plan: Index Only Scan using task_identity on task i
select s.ordinal, k.task_id, k.state::text as state,
       exists (select 1 from {schema}.task i where i.task_id = s.task_id) as is_id_taken
from unnest($1::bigint[], $2::text[], $3::text[], $4::uuid[]) as s (ordinal, task_type, idempotency_key, task_id)
left join {schema}.task k on k.task_type = s.task_type and k.idempotency_key = s.idempotency_key
                         and k.idempotency_key is not null
