-- Removes a chunk of archived messages older than the retention, found by the BRIN index.
-- With: enable_bitmapscan
-- Plan: Bitmap Index Scan on message_archive_age
with gone as (
  delete from {schema}.message_archive
  where ctid = any (array(select ctid from {schema}.message_archive
                          where archived_at <= {schema}.clock() - $1::bigint * interval '1 microsecond' limit $2))
  returning queue, message_id),
attempts as (
  delete from {schema}.failed_attempt a using gone
  where a.queue = regexp_replace(gone.queue, '_dlq$', '') and a.message_id = gone.message_id)
select count(*) from gone
