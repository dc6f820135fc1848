-- For a long queue: by row number until the page is full, because sorting them all would take longer.
select {peeked}
from {schema}.message force index (primary) where queue = :queue and id > :after order by id limit :limit
