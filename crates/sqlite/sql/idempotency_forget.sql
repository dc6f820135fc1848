-- Removes a chunk of the oldest records.
-- Plan: SEARCH idempotency USING PRIMARY KEY (key=?)
-- Plan: SEARCH idempotency USING COVERING INDEX idempotency_age (at<?)
delete from idempotency where key in (select key from idempotency where at <= ?1 order by at limit ?2)
