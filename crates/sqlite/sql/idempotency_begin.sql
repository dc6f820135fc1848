insert into idempotency (key, lease_token, completed, at) values (?1, ?2, 0, ?3)
on conflict (key) do update set lease_token = excluded.lease_token, completed = 0, at = excluded.at
