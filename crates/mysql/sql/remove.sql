-- The rows are locked, and their leases are valid.
delete from {schema}.message where id in (:ids)
