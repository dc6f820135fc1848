-- Plan: Index Scan using dead_letter_queue on dead_letter
select message_id from {schema}.dead_letter
where queue = $1 and ($2::text is null or reason = $2) and ($3::text is null or error = $3)
order by death
