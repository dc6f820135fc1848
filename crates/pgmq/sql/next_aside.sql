-- The queues for which something that was kept aside is due, and when the next is.
-- Plan: Index Scan using delayed_due on delayed
select array(select distinct queue from {schema}.delayed where due_at <= {schema}.clock()),
       (select ceil(extract(epoch from due_at - {schema}.clock()) * 1000000)::bigint
        from {schema}.delayed where due_at > {schema}.clock() order by due_at limit 1)
