delete from {schema}.unplaced where id = any ($1::bigint[])
