-- Plan: Index Scan using idempotency_pkey on idempotency
select completed, (extract(epoch from at - {schema}.clock()) * 1000000)::bigint as left_micros
from {schema}.idempotency where key = $1
