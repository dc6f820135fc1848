-- Plan: SEARCH outbox USING COVERING INDEX outbox_queue (queue=?)
select count(*) as count from (select 1 from outbox where queue = ?1 limit ?2)
