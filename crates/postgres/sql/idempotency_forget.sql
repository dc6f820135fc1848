-- Removes a chunk of the oldest records.
-- Plan: Index Scan using idempotency_age on idempotency
with gone as (
  delete from {schema}.idempotency
  where key in (select key from {schema}.idempotency
                where at <= {schema}.clock() - $1::bigint * interval '1 microsecond' order by at limit $2)
  returning key)
select count(*) from gone
