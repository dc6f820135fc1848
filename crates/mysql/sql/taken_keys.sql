-- The ordering keys that have messages. One probe a key.
select :queue as queue, :ordering_key as ordering_key from dual
where exists (select 1 from {schema}.message force index (message_key)
              where queue = :queue and ordering_key = :ordering_key)
