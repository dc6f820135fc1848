-- Plan: SEARCH idempotency USING PRIMARY KEY (key=?)
update idempotency set completed = 1, at = ?2 where key = ?1
