-- Plan: Index Only Scan
select count(*) from {dead}
