-- Plan: Index Scan using {dead_primary_key} on {dead_table}
update {dead} set message = $2, headers = $3 where msg_id = $1
