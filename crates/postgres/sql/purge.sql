-- Removes messages by an operator's word. The caller holds the stripes of their keys and promotes afterwards. One that
-- somebody is just leasing is waited for and then left alone.
-- The empty text keeps the planner from walking the queue for every row.
-- Plan: Index Scan using message_pkey on message m
with gone as (
  delete from {schema}.message m using unnest($1::bigint[]) as wanted (id)
  where m.id = wanted.id and m.queue || '' = $2
    and ($3::boolean or m.lease_token is null or m.next_attempt_at <= {schema}.clock())
  returning m.id, m.message_id),
forgotten as (delete from {schema}.dead_letter d using gone where d.id = gone.id),
attempts as (delete from {schema}.message_attempt a using gone where a.message_id = gone.message_id)
select id from gone
