-- Plan: SEARCH dead_letter USING INDEX dead_letter_message (message_id=?)
select exists (select 1 from dead_letter where message_id = ?2 and queue = ?1) as is_dead
