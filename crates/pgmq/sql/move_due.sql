-- Moves due messages from `delayed` into the queue, in the order of their due times.
-- Plan: Index Scan using delayed_queue on delayed
-- Plan: Index Scan using delayed_pkey on delayed d
with due as materialized (
  select id from {schema}.delayed where queue = $1 and due_at <= {schema}.clock()
  order by due_at limit 1000 for update skip locked),
taken as (delete from {schema}.delayed d using due where d.queue = $1 and d.id = due.id returning d.*)
insert into {queue} (enqueued_at, vt, message, headers)
select enqueued_at, due_at, message, headers from taken order by due_at, id
returning msg_id
