-- Locks the dead letters that are not leased or locked.
select m.id, m.message_id from {schema}.message m force index (primary) join {schema}.dead_letter d on d.id = m.id
where m.id in (:ids) and not (m.lease_token is not null and m.next_attempt_at > utc_timestamp(6))
order by m.id for update skip locked
