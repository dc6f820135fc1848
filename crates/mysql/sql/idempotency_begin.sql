-- Takes the record if there is none, or if its lease has expired. Assignments run from left to right, so the time comes
-- last.
insert into {schema}.idempotency (name, lease_token, completed, at)
values (:name, :lease, false, utc_timestamp(6) + interval :extension microsecond)
on duplicate key update
  lease_token = if(completed = 0 and at <= utc_timestamp(6), values(lease_token), lease_token),
  at = if(completed = 0 and at <= utc_timestamp(6), values(at), at)
