delete from {schema}.queue where name = :queue;
delete from {schema}.queue_pause where queue in (:queue, :dead);
delete from {schema}.unplaced where queue = :queue
