-- A chunk of what Postrider has archived and is older than the retention. What others have archived is theirs.
-- Plan: Index Scan using {archive_index} on {archive_table}
with gone as (
  delete from {archive}
  where ctid = any (array(select ctid from {archive}
                          where archived_at > $1 and archived_at <= {schema}.clock() - $2::bigint * interval '1 microsecond'
                            and {schema}.ours(headers) ? 'state'
                          order by archived_at limit $3))
  returning msg_id)
select count(*), {schema}.clock() - $2::bigint * interval '1 microsecond' from gone
