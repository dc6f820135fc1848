-- Rows of a queue and of its dead letters, newest end first, each with whether it matches the filter. Reads no body,
-- and no row past the limit.
-- Plan: Index Scan Backward using message_archive_queue on message_archive
select archived_at, id, is_included from (
  (select archived_at, id, coalesce(($7::text is null or ordering_key = $7) and ($8::text is null or state::text = $8)
                         and ($9::text is null or headers->>$9 = $10::text), false) as is_included
   from {schema}.message_archive
   where queue = $1 and timezone('UTC', archived_at) >= timezone('UTC', $3::timestamptz)
     and (timezone('UTC', archived_at), id) < (timezone('UTC', $4::timestamptz), $5::bigint)
   order by timezone('UTC', archived_at) desc, id desc limit $6)
  union all
  (select archived_at, id, coalesce(($7::text is null or ordering_key = $7) and ($8::text is null or state::text = $8)
                         and ($9::text is null or headers->>$9 = $10::text), false) as is_included
   from {schema}.message_archive
   where queue = $2 and timezone('UTC', archived_at) >= timezone('UTC', $3::timestamptz)
     and (timezone('UTC', archived_at), id) < (timezone('UTC', $4::timestamptz), $5::bigint)
   order by timezone('UTC', archived_at) desc, id desc limit $6)
) rows
order by archived_at desc, id desc limit $6
