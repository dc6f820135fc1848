-- What a queue needs here and PGMQ does not give it, but for its indexes: a vacuum that keeps up, and notifications that
-- cost a batch one call. PGMQ's own trigger is called for every row, which halved the rate of batches of a hundred; this
-- one has its name and its function, so that PGMQ turns it off like its own. A queue that notifies already is left alone.
-- The trigger needs the table for itself for a moment. Indexes of a large table must be made outside a function.
create or replace function {schema}.adopt(queue text, throttle_ms int) returns void language plpgsql as $$
declare
  named regclass := to_regclass(format('pgmq.%I', 'q_' || queue));
begin
  if named is null then
    return;
  end if;
  perform pg_advisory_xact_lock(hashtext('postrider.adopt.' || queue));
  -- Writers wait behind whoever waits for the table.
  perform set_config('lock_timeout', '200', true);
  -- Every message leaves two dead rows behind it, so the table is cleaned by their number and at full speed, unless its
  -- owner has settings for it.
  if (select reloptions is null and relkind = 'r' from pg_catalog.pg_class where oid = named) then
    execute format('alter table pgmq.%I set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
                    autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_scale_factor = 0,
                    autovacuum_vacuum_insert_threshold = 100000)', 'q_' || queue);
  end if;
  if throttle_ms is not null and not exists (select 1 from pg_catalog.pg_trigger
                                             where tgrelid = named
                                               and tgname = 'trigger_notify_queue_insert_listeners') then
    perform pgmq.enable_notify_insert(queue, throttle_ms);
    execute format('drop trigger trigger_notify_queue_insert_listeners on pgmq.%I', 'q_' || queue);
    execute format('create trigger trigger_notify_queue_insert_listeners after insert on pgmq.%I
                    for each statement execute function pgmq.notify_queue_listeners()', 'q_' || queue);
  end if;
end $$;
