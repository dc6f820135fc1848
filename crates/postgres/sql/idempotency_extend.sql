-- Plan: Index Scan using idempotency_pkey on idempotency
update {schema}.idempotency
set at = case when completed then at else {schema}.clock() + $3::bigint * interval '1 microsecond' end
where key = $1 and lease_token = $2
returning key
