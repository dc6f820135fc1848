leased as (
  update {queue} m
  set vt = {schema}.clock() + $3::bigint * interval '1 microsecond',
      read_ct = m.read_ct + case when chosen.death is null then 1 else 0 end,
      last_read_at = case when chosen.death is null then {schema}.clock() else m.last_read_at end,
      headers = case when m.read_ct = 0 or chosen.death is not null or {schema}.ours(m.headers) ? 'first_read_at'
                          or m.read_ct <= coalesce({schema}.number({schema}.ours(m.headers)->'released'), 0)
                     then m.headers
                     else {schema}.noted(m.headers, jsonb_build_object('first_read_at',
                                                                       {schema}.micros(m.last_read_at))) end
  from chosen where m.msg_id = chosen.msg_id
  returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers, chosen.due, chosen.death)
