with edited as (
  update {schema}.message
  set payload = coalesce($2, payload), content_type = case when $3::boolean then $4 else content_type end,
      headers = coalesce($5::text::jsonb, headers)
  where id = $1)
update {schema}.dead_letter set revision = revision + 1 where id = $1
