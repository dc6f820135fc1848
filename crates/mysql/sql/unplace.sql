insert into {schema}.unplaced (queue, ordering_key) values :rows
