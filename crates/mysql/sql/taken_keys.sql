-- Which of these ordering keys have messages. A probe a key.
select :queue, :ordering_key from dual
where exists (select 1 from {schema}.message force index (message_key)
              where queue = :queue and ordering_key = :ordering_key)
