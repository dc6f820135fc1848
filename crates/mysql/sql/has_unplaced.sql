select exists (select 1 from {schema}.unplaced where queue = :queue)
