-- The claim that takes the oldest due message first, whatever its priority. It locks more rows than it takes, until the
-- transaction ends.
-- Plan: Index Scan using message_claim on message m_1
-- Plan: Tid Scan on message m
-- Plan: Index Only Scan using unplaced_queue on unplaced
with found as materialized (
  select found.row_ctid, found.due, found.death
  from {due_messages}
  where not exists (select 1 from {schema}.queue_pause where queue = $1)),
chosen as materialized (select row_ctid, due, death from found order by due limit $2)
{lease_chosen},
          exists (select 1 from {schema}.unplaced where queue = $1) as has_unplaced
