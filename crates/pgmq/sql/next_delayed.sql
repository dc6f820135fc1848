-- The queues with due messages in `delayed`, and when the next is due.
-- Plan: Index Scan using delayed_due on delayed
select array(select distinct queue from {schema}.delayed where due_at <= {schema}.clock()) as queues,
       (select ceil(extract(epoch from due_at - {schema}.clock()) * 1000000)::bigint
        from {schema}.delayed where due_at > {schema}.clock() order by due_at limit 1) as due_in
