-- In how many microseconds the next task of these types is due, and whether keys wait to be promoted. The probes are
-- those of the claim.
-- Plan: Index Scan using task_claim on task t
-- Plan: Index Scan using task_claim on task t_1
-- Plan: Index Only Scan using task_unplaced_key on task_unplaced
select (select ceil(extract(epoch from min(first.due) - {schema}.clock()) * 1000000)::bigint
        from unnest($1::smallint[], $2::text[]) as probe (priority, task_type)
        cross join lateral (
          (select t.scheduled_for as due from {schema}.task t
           where t.state = 'ENQUEUED' and not t.blocked and t.task_type = probe.task_type and t.priority = probe.priority
             and (t.deadline is null or t.deadline > {schema}.clock())
           order by t.scheduled_for limit 1)
          union all
          (select t.scheduled_for as due from {schema}.task t
           where t.state = 'PENDING' and not t.blocked and t.task_type = probe.task_type and t.priority = probe.priority
             and (t.deadline is null or t.deadline > {schema}.clock())
           order by t.scheduled_for limit 1)) first) as due_in,
       exists (select 1 from {schema}.task_unplaced) as has_unplaced
