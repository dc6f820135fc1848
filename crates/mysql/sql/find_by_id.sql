-- Reads all messages of the queue: there is no index by id.
select id from {schema}.message where queue = :queue and message_id = :message_id
