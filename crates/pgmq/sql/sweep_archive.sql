-- Removes a chunk of messages that Postrider archived and that are older than the retention. Those of other clients
-- stay.
-- Plan: Index Scan using {archive_index} on {archive_table}
with gone as (
  delete from {archive}
  where ctid = any (array(select ctid from {archive}
                          where archived_at > $1 and archived_at <= {schema}.clock() - $2::bigint * interval '1 microsecond'
                            and {schema}.ours(headers) ? 'state'
                          order by archived_at limit $3))
  returning msg_id)
select count(*) as removed, {schema}.clock() - $2::bigint * interval '1 microsecond' as swept_until from gone
