-- Removes a chunk of the records that expired first. The expiry is checked again at the removal: a record may have been
-- put anew.
-- Plan: Index Scan using state_record_expiry on state_record
with gone as (
  delete from {schema}.state_record r
  using (select kind, key from {schema}.state_record
         where expires_at <= {schema}.clock() order by expires_at limit $1) as expired
  where r.kind = expired.kind and r.key = expired.key and r.expires_at <= {schema}.clock()
  returning r.sequence)
select count(*) from gone
