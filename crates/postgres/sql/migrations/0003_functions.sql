-- Sends from any SQL client, inside its own transaction: the message exists if and only if the transaction commits. The
-- transaction may stay open for any time, so nothing here takes a lock that others need: a message with an ordering key
-- is sent blocked, and its key is noted in unplaced; the next claim after the commit promotes it.

-- A UUID of version 7.
create function {schema}.new_message_id() returns uuid language sql volatile parallel safe as $body$
  select encode(
    set_bit(set_bit(
      overlay(uuid_send(gen_random_uuid())
              placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
      52, 1), 53, 1), 'hex')::uuid
$body$;

-- The hint of a transaction: since when it may have changed a queue. A procedure that commits counts from its call.
create function {schema}.hint(queue text) returns text language sql stable parallel safe as $body$
  select 'since ' || (extract(epoch from least(transaction_timestamp(), {schema}.clock())) * 1000000)::bigint || ' ' || queue
$body$;

-- Refuses invalid messages, and says what is allowed.
create function {schema}.check_message(queue text, headers jsonb, ordering_key text, dedup_key text, priority int,
                                       delay interval, content_type text)
returns void language plpgsql immutable as $body$
declare
  key text;
begin
  if queue is null or queue !~ '^[A-Za-z0-9_.-]{1,80}$' or queue in ('.', '..') then
    raise exception 'invalid queue name: use 1 to 80 letters, digits, ''_'', ''.'' and ''-'', but neither ''.'' nor ''..'''
      using errcode = '22023';
  end if;
  if queue like '%\_dlq' then
    raise exception 'invalid queue name: ''%'' holds dead letters and cannot be sent to', queue using errcode = '22023';
  end if;
  foreach key in array array[ordering_key, dedup_key] loop
    if key = '' or octet_length(key) > 128 or key ~ '[[:cntrl:]]' then
      raise exception 'invalid key: use 1 to 128 bytes of text without control characters' using errcode = '22023';
    end if;
  end loop;
  if priority is null or priority not between 0 and 9 then
    raise exception 'invalid priority: % is not between 0 and 9', priority using errcode = '22023';
  end if;
  if delay is null or delay < interval '0' or extract(epoch from delay) > 36500 * 86400.0 then
    raise exception 'invalid delay: use one from 0 to 36500 days' using errcode = '22023';
  end if;
  if content_type = '' or octet_length(content_type) > 128 or content_type ~ '[^ -~]' then
    raise exception 'invalid content type: use 1 to 128 printable ASCII characters' using errcode = '22023';
  end if;
  if headers is null or jsonb_typeof(headers) <> 'object' then
    raise exception 'invalid headers: use an object of texts' using errcode = '22023';
  end if;
  if exists (select 1 from jsonb_each(headers) as header (name, value)
             where jsonb_typeof(header.value) <> 'string' or header.name !~ '^[A-Za-z0-9_.-]{1,128}$'
                or lower(header.name) like 'postrider-%') then
    raise exception 'invalid headers: use texts, and names of letters, digits, ''_'', ''.'' and ''-'' that do not begin '
                    'with ''postrider-''' using errcode = '22023';
  end if;
end
$body$;

-- Dead-letters an expired message that is not leased, so that a new one can take its dedup key.
create function {schema}.bury_expired(queue text, dedup_key text) returns void language plpgsql as $body$
declare
  dead record;
begin
  select m.* into dead from {schema}.message m
  where m.queue = bury_expired.queue and m.dedup_key = bury_expired.dedup_key and m.expires_at <= {schema}.clock()
    and not (m.lease_token is not null and m.next_attempt_at > {schema}.clock())
  for update;
  if not found then
    return;
  end if;
  insert into {schema}.dead_letter (id, message_id, queue, reason, error, deliveries_count, attempts_count, created_at,
                                    first_attempt_at, last_attempt_at, dead_at, dedup_key)
  values (dead.id, dead.message_id, dead.queue, 'expired', dead.last_error, dead.deliveries_count, dead.attempts_count,
          dead.created_at, dead.first_attempt_at, dead.last_attempt_at, {schema}.clock(), dead.dedup_key);
  update {schema}.message m
  set queue = m.queue || '_dlq', blocked = false, next_attempt_at = {schema}.clock(), state = 'PENDING',
      lease_token = null, acquired_at = null, deliveries_count = 0, attempts_count = 0, created_at = {schema}.clock(),
      first_attempt_at = null, last_attempt_at = null, dedup_key = null, last_error = null
  where m.id = dead.id;
  if dead.ordering_key is not null then
    insert into {schema}.unplaced (queue, ordering_key) values (dead.queue, dead.ordering_key);
  end if;
end
$body$;

-- Sends bytes. Returns the message's id, or the id of the live message with its dedup key.
create function {schema}.send(queue text, payload bytea, headers jsonb default '{}', ordering_key text default null,
                              dedup_key text default null, priority int default 4, delay interval default '0',
                              expires_at timestamptz default null, content_type text default null,
                              message_id uuid default null)
returns uuid language plpgsql as $body$
declare
  id uuid := coalesce(message_id, {schema}.new_message_id());
  holder uuid;
begin
  perform {schema}.check_message(queue, headers, ordering_key, dedup_key, priority, delay, content_type);
  if payload is null then
    raise exception 'invalid payload: it is null; send an empty one if there is nothing to say' using errcode = '22023';
  end if;
  loop
    if dedup_key is not null then
      perform {schema}.bury_expired(queue, dedup_key);
    end if;
    insert into {schema}.message (queue, message_id, priority, next_attempt_at, created_at, expires_at, ordering_key,
                                  dedup_key, content_type, headers, payload, blocked)
    values (send.queue, id, send.priority, {schema}.clock() + send.delay, {schema}.clock(), send.expires_at,
            send.ordering_key, send.dedup_key, nullif(send.content_type, 'application/octet-stream'), send.headers,
            send.payload, send.ordering_key is not null)
    on conflict do nothing;
    exit when found;
    select m.message_id into holder from {schema}.message m
    where m.queue = send.queue and m.dedup_key = send.dedup_key;
    if found then
      return holder;
    end if;
  end loop;
  if ordering_key is not null or not exists (select 1 from {schema}.queue q where q.name = send.queue) then
    insert into {schema}.unplaced (queue, ordering_key) values (send.queue, send.ordering_key);
  end if;
  -- Of many in one transaction the server keeps one.
  perform pg_notify('{channel}', {schema}.hint(queue));
  return id;
end
$body$;

-- Sends text.
create function {schema}.send(queue text, payload text, headers jsonb default '{}', ordering_key text default null,
                              dedup_key text default null, priority int default 4, delay interval default '0',
                              expires_at timestamptz default null, content_type text default null,
                              message_id uuid default null)
returns uuid language sql as $body$
  select {schema}.send(queue, convert_to(payload, 'UTF8'), headers, ordering_key, dedup_key, priority, delay,
                       expires_at, content_type, message_id)
$body$;

-- Sends JSON.
create function {schema}.send(queue text, payload jsonb, headers jsonb default '{}', ordering_key text default null,
                              dedup_key text default null, priority int default 4, delay interval default '0',
                              expires_at timestamptz default null, content_type text default 'application/json',
                              message_id uuid default null)
returns uuid language sql as $body$
  select {schema}.send(queue, convert_to(payload::text, 'UTF8'), headers, ordering_key, dedup_key, priority, delay,
                       expires_at, content_type, message_id)
$body$;

-- Sends several bodies, in order. Returns their ids.
create function {schema}.send_batch(queue text, payloads bytea[], headers jsonb default '{}',
                                    ordering_key text default null, priority int default 4,
                                    delay interval default '0', content_type text default null)
returns setof uuid language sql as $body$
  select {schema}.send(queue, payload, headers, ordering_key, null, priority, delay, null, content_type)
  from unnest(payloads) with ordinality as body (payload, place) order by place
$body$;

create function {schema}.send_batch(queue text, payloads text[], headers jsonb default '{}',
                                    ordering_key text default null, priority int default 4,
                                    delay interval default '0', content_type text default null)
returns setof uuid language sql as $body$
  select {schema}.send(queue, payload, headers, ordering_key, null, priority, delay, null, content_type)
  from unnest(payloads) with ordinality as body (payload, place) order by place
$body$;

create function {schema}.send_batch(queue text, payloads jsonb[], headers jsonb default '{}',
                                    ordering_key text default null, priority int default 4,
                                    delay interval default '0', content_type text default 'application/json')
returns setof uuid language sql as $body$
  select {schema}.send(queue, payload, headers, ordering_key, null, priority, delay, null, content_type)
  from unnest(payloads) with ordinality as body (payload, place) order by place
$body$;
