-- Plan: Index Scan using task_schedule_pkey on task_schedule
select {schedule}
from {schema}.task_schedule order by name
