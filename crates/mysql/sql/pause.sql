insert into {schema}.queue_pause (queue, paused_at) values (:queue, utc_timestamp(6))
on duplicate key update paused_at = paused_at
