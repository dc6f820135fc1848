-- Plan: SEARCH dead_letter USING COVERING INDEX dead_letter_queue (queue=?)
select count(*) as dead from dead_letter where queue = ?1
