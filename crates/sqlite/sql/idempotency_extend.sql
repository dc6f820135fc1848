-- Plan: SEARCH idempotency USING PRIMARY KEY (key=?)
update idempotency set at = ?2 where key = ?1
