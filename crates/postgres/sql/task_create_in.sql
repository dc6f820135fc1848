-- A creation inside a caller's transaction.
select made.id, made.is_new, made.state::text as state
from {schema}.make_task($1::text, $2::bytea,
                        coalesce($3::timestamptz, {schema}.clock() + $4::bigint * interval '1 microsecond'), $5::int,
                        $6::bigint, $7::text, $8::text, $9::text,
                        coalesce($10::timestamptz, {schema}.clock() + $11::bigint * interval '1 microsecond'),
                        $12::text[], $13::text, $14::uuid, $15::text[]) made
