-- Plan: Index Scan using dead_letter_message on dead_letter
select exists (select 1 from {schema}.dead_letter where message_id = $2 and queue = $1) as is_dead
