delete from {schema}.task_schedule where name = $1 returning name
