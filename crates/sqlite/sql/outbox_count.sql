-- Plan: SEARCH outbox USING COVERING INDEX outbox_queue (queue=?)
select count(*) from (select 1 from outbox where queue = ?1 limit ?2)
