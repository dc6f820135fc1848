-- A send inside a caller's transaction. No row if the queue is missing and must not be created.
select {schema}.send(queue => $1::text, payload => $2::bytea, headers => $3::text::jsonb, ordering_key => $4::text,
                     dedup_key => $5::text, priority => $6::int, delay => $7::bigint * interval '1 microsecond',
                     expires_at => coalesce($8::timestamptz,
                                            {schema}.clock() + $9::bigint * interval '1 microsecond'),
                     content_type => $10::text, message_id => $11::uuid) as message_id
where $12::boolean or exists (select 1 from {schema}.queue where name = $1)
   or exists (select 1 from {schema}.unplaced where queue = $1)
