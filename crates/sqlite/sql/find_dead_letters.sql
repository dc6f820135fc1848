-- Plan: SEARCH dead_letter USING INDEX dead_letter_queue (queue=?)
select message_id, id from dead_letter
where queue = ?1 and (?2 is null or reason = ?2) and (?3 is null or error = ?3)
order by death
