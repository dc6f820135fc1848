-- Plan: SEARCH idempotency USING PRIMARY KEY (key=?)
delete from idempotency where key = ?1
