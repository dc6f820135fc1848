-- There is no index for it: all messages of the queue are looked at.
select id from {schema}.message where queue = :queue and message_id = :message_id
