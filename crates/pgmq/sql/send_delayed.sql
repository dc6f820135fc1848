-- Messages with long delays wait in `delayed`, beside the queue.
insert into {schema}.delayed (due_at, enqueued_at, queue, message, headers)
select {schema}.clock() + s.delay * interval '1 microsecond', {schema}.clock(), $5, s.message,
       case when s.lifetime is null then s.headers
            else {schema}.noted(s.headers, jsonb_build_object('expires_at',
                   {schema}.micros({schema}.clock() + s.lifetime * interval '1 microsecond'))) end
from unnest($1::bigint[], $2::jsonb[], $3::jsonb[], $4::bigint[]) as s (delay, message, headers, lifetime)
