-- The clock of leases and due times: the server's, at the start of the statement, so that a transaction that waited for
-- a lock does not use the time at which it began.
create function {schema}.clock() returns timestamptz language sql stable parallel safe
as 'select pg_catalog.statement_timestamp()';

-- Times in headers are microseconds since 1970: numbers compare and travel without loss.
create function {schema}.micros(at timestamptz) returns bigint language sql immutable parallel safe
as 'select (extract(epoch from $1) * 1000000)::bigint';

-- A number in a header. Any client can write headers: an invalid count or time is null and never an error, or one
-- message would block a whole queue.
create function {schema}.number(value jsonb) returns bigint language sql immutable parallel safe
as 'select case when jsonb_typeof($1) = ''number'' and $1 >= ''0'' and $1 <= ''9007199254740991'' then $1::bigint end';

-- The note about a message in its headers, under Postrider's own name.
create function {schema}.ours(headers jsonb) returns jsonb language sql immutable parallel safe
as 'select $1->''postrider-message''';

-- Headers with an addition to the note. Foreign headers that are no object are kept under a name.
create function {schema}.noted(headers jsonb, note jsonb) returns jsonb language sql immutable parallel safe
as 'select case jsonb_typeof($1) when ''object'' then $1 when ''null'' then ''{}''
                else case when $1 is null then ''{}'' else jsonb_build_object(''x-pgmq-headers'', $1) end end
           || jsonb_build_object(''postrider-message'',
                                 case when jsonb_typeof($1->''postrider-message'') = ''object''
                                      then ($1->''postrider-message'') || $2 else $2 end)';

-- The failed attempts of a message with one more; the last ten are kept.
create function {schema}.failures(headers jsonb, failure jsonb) returns jsonb language sql immutable parallel safe
as 'select case when jsonb_typeof($1->''postrider-message''->''failures'') is distinct from ''array''
                then jsonb_build_array($2)
                when jsonb_array_length($1->''postrider-message''->''failures'') >= 10
                then ($1->''postrider-message''->''failures'') - 0 || $2
                else ($1->''postrider-message''->''failures'') || $2 end';

-- Whether any client has a lease that has not expired: the message was read, and not given back since.
create function {schema}.is_leased(vt timestamptz, read_ct int, headers jsonb) returns boolean
language sql stable parallel safe
as 'select $1 > {schema}.clock() and $2 > 0
       and coalesce({schema}.number($3->''postrider-message''->''returned''), -1) <> $2';

-- Whether a lease is valid: the same read, not given back since, and the end that the lease was given or extended to.
-- Another client that sets vt ends it.
create function {schema}.is_held(read_ct int, last_read_at timestamptz, vt timestamptz, headers jsonb,
                                 lease_read_ct int, lease_read_at timestamptz, lease_vt timestamptz) returns boolean
language sql stable parallel safe
as 'select $1 = $5 and $2 = $6 and $3 > {schema}.clock()
       and ($3 = $7 or {schema}.number($4->''postrider-message''->''lease_ends'') = {schema}.micros($3))
       and coalesce({schema}.number($4->''postrider-message''->''returned''), -1) <> $1';

-- The headers of a dead letter: its id, which is derived for a foreign message, its record, and no counts, since they
-- restart.
create function {schema}.buried(headers jsonb, origin text, id text, reason text, error text, read_ct int,
                                enqueued_at timestamptz, last_read_at timestamptz, failure jsonb) returns jsonb
language sql stable parallel safe
as 'select {schema}.noted(
      case when jsonb_typeof($1->''postrider-message'') = ''object''
           then jsonb_set($1, ''{postrider-message}'', ($1->''postrider-message'')
                - array[''attempts'', ''error'', ''returned'', ''released'', ''first_read_at'', ''lease_ends''])
           else $1 end,
      jsonb_build_object(''id'', $3, ''dead'', jsonb_strip_nulls(jsonb_build_object(
        ''origin'', $2, ''reason'', $4, ''error'', coalesce($5, $1->''postrider-message''->>''error''),
        ''deliveries'', lived.deliveries,
        ''attempts'', coalesce({schema}.number($1->''postrider-message''->''attempts''), 0),
        ''enqueued_at'', {schema}.micros($7),
        ''first_read_at'', case when lived.deliveries > 0
                              then coalesce({schema}.number($1->''postrider-message''->''first_read_at''),
                                            {schema}.micros($8)) end,
        ''last_read_at'', case when lived.deliveries > 0 then {schema}.micros($8) end,
        ''dead_at'', {schema}.micros({schema}.clock()), ''revision'', 0)))
      || case when $9 is null then ''{}'' else jsonb_build_object(''failures'', {schema}.failures($1, $9)) end)
    from (select $6 - coalesce({schema}.number($1->''postrider-message''->''released''), 0) as deliveries) lived';

-- The headers of a redriven message: without the record, and without an expiry that has passed.
create function {schema}.revived(headers jsonb, id text) returns jsonb language sql stable parallel safe
as 'select {schema}.noted(
      case when jsonb_typeof($1->''postrider-message'') = ''object''
           then jsonb_set($1, ''{postrider-message}'', ($1->''postrider-message'')
                - array[''dead'', ''failures'', ''attempts'', ''error'', ''returned'', ''released'', ''first_read_at'',
                        ''lease_ends'']
                - case when {schema}.number($1->''postrider-message''->''expires_at'')
                            <= {schema}.micros({schema}.clock()) then ''expires_at'' else '''' end)
           else $1 end,
      jsonb_build_object(''id'', $2))';

-- Paused queues. Only Postrider reads it.
create table {schema}.queue_pause (
  queue text collate "C" not null primary key,
  paused_at timestamptz not null default {schema}.clock()
);

-- The holders of dedup keys. A row counts only while its message is in the queue: other clients may remove the message.
create table {schema}.dedup (
  queue text collate "C" not null,
  dedup_key text collate "C" not null,
  message_id text not null,
  msg_id bigint not null,
  primary key (queue, dedup_key)
);

-- Messages with long delays. In the queue they would slow PGMQ's own reads.
create table {schema}.delayed (
  id bigint generated always as identity,
  due_at timestamptz not null,
  enqueued_at timestamptz not null,
  queue text collate "C" not null,
  message jsonb not null,
  headers jsonb not null,
  primary key (queue, id)
);
create index delayed_queue on {schema}.delayed (queue, due_at);
create index delayed_due on {schema}.delayed (due_at);

-- Rows come and go as in a queue.
alter table {schema}.delayed set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
alter table {schema}.dedup set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Gives a queue what Postrider needs, but for its indexes: frequent vacuum, and notifications that cost one call a
-- batch. PGMQ's own trigger is called for every row, which halved the rate of batches of a hundred; this one has its
-- name and its function, so that PGMQ disables it like its own. A queue that notifies already is left alone. The
-- trigger needs the table exclusively for a moment. Indexes of a large table must be created outside a function.
create function {schema}.adopt(queue text, throttle_ms int) returns void language plpgsql as $$
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
