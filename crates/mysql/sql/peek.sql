-- For a short queue: all messages by the index, then sorted.
select {peeked}
from {schema}.message force index (message_claim) where queue = :queue and id > :after order by id limit :limit
