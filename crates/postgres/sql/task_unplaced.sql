-- Keys to be promoted.
-- Plan: Index Only Scan using task_unplaced_key on task_unplaced
select distinct task_type, ordering_key from (select task_type, ordering_key from {schema}.task_unplaced limit 1000) few
