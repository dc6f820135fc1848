-- Removes a chunk of the records that expired first.
-- Plan: SEARCH state_record USING INTEGER PRIMARY KEY (rowid=?)
-- Plan: SEARCH state_record USING COVERING INDEX state_record_expiry (expires_at>? AND expires_at<?)
delete from state_record
where sequence in (select sequence from state_record
                   where expires_at is not null and expires_at <= ?1 order by expires_at limit ?2)
