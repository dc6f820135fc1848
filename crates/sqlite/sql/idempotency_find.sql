-- Plan: SEARCH idempotency USING PRIMARY KEY (key=?)
select lease_token, completed, at from idempotency where key = ?1
