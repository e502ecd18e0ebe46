/* sql_inbox.c - tasks that applications put in SQL, inside their own transactions: step 2 of the schema.
 *
 * A position is given under its shard's lock, which is held until commit. An application's transaction may take for
 * ever, so put() gives none: it inserts a row into `inbox` and nothing else, and waits for nobody. A worker takes in
 * what it can see, in the order of numbers, by an ordinary append (inbox.c, queue/take_in.c).
 *
 * I1  A row is there exactly when its transaction has been committed and it was not taken in.
 * I2  Rows of one queue are taken in in the order of their numbers, by one transaction at a time.
 *
 * Numbers of one transaction ascend as it made its calls. When a transaction has ended before another one's put(), its
 * numbers are lower, and whoever sees the later rows sees its rows, too: so they come first. Between two that overlap
 * there is no order to keep.
 *
 * PostgreSQL commits transactions that notify one after the other, and whatever the first of them waits for, a disk or
 * a replica, the others wait for, too. So a transaction notifies only if no other one that does is open, which an
 * advisory lock tells; the rows of the rest are found by whoever the one has woken, or looks every tenth of a second
 * (work/worker_inbox.c).
 *
 * Names have the collation "C", which convert_from() gives its results: with any other the index does not serve them,
 * and each read passes all rows.
 *
 * A payload that is NULL is refused: it is most often a column that was not joined, or a result that did not come, and
 * as an empty payload it would be a task that nobody meant. The name of a partition in the place of the queue's is told
 * from a queue that there is not. No queue has __p in its name, so what stands before that is the queue's.
 *
 * Whoever puts holds an advisory lock of the queue until his transaction ends, which others who put share: so a queue
 * is not removed under a transaction that is open, whose tasks nobody would ever find (put_record in sql_records.c).
 *
 * A snapshot that somebody holds open, a dump say, keeps rows that were taken in and deleted, and whoever reads passes
 * each of them. So reading begins at a number below which no row can come any more (I3), which each process keeps for
 * itself. Numbers are handed out in eras of 16,384. Whoever puts holds the era of the last number, shared, before he
 * draws his own, until his transaction ends: so what is not committed yet has numbers of an era that is held, or later
 * ones. inbox_look reads the last number, then which eras are held, and then, with a new snapshot, which row is the
 * first.
 *
 * I3  Below what inbox_look returns as the next `low` there is no row, and none will be committed.
 *
 * A transaction that is not read committed sees the records as they were when it began. That a queue was altered or
 * removed since is found out by a row lock (check_snapshot), which ends at once, with a subtransaction: nobody is to
 * wait for it.
 *
 * Whoever takes in holds locks while he decides, and his host may be gone then without a word. So the server ends a
 * transaction of his that it hears nothing of for 5 s (inbox_read), unless it does so sooner anyway.
 *
 * put() runs with the rights of the schema's owner: applications need USAGE on the schema, and no table.
 *
 * What options say is read as UTF-8 later, and read for all that waits: where the database takes other bytes as text,
 * put() must refuse them. */
#include "store/postgres/sql.h"

#include "keyline/store.h"

/* The numbers that stand in the text. */
_Static_assert(KL_KEY_BYTES_MAX == 512 && KL_KIND_BYTES_MAX == 255 && KL_PAYLOAD_BYTES_MAX == 1048576, "check_tasks");
_Static_assert(KL_PRIORITY_MIN + 16 == 0 && KL_PRIORITY_MAX == 15 && KL_ATTEMPTS_MAX == 65535, "check_options");
_Static_assert(KL_ID_MS_MAX == 17592186044415, "check_options");

/* clang-format off */
const char kl__pg_sql_inbox[] = KL_SQL(
CREATE TABLE $S.inbox (
    queue text COLLATE "C" NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    key bytea,
    kind bytea,
    payload bytea,
    options jsonb,
    refused text,
    PRIMARY KEY (queue, number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE FUNCTION $S.check_options(o jsonb) RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
DECLARE
    f record;
    n numeric;
    low numeric;
    high numeric;
    most int;
BEGIN
    IF jsonb_typeof(o) <> 'object' THEN
        RETURN 'options must be a JSON object';
    END IF;
    FOR f IN SELECT x.key AS name, x.value FROM jsonb_each(o) x LOOP
        low := CASE f.name WHEN 'priority' THEN -16 WHEN 'due_ms' THEN 0 WHEN 'delay_ms' THEN 0
                           WHEN 'attempts_max' THEN 1 WHEN 'timeout_ms' THEN 0 WHEN 'unique_ms' THEN 1
                           WHEN 'keep_ms' THEN 0 END;
        most := CASE f.name WHEN 'unique' THEN 256 WHEN 'group' THEN 128 WHEN 'traceparent' THEN 1024
                            WHEN 'partition' THEN 80 END;
        IF low IS NOT NULL THEN
            high := CASE f.name WHEN 'priority' THEN 15 WHEN 'attempts_max' THEN 65535
                                WHEN 'delay_ms' THEN 8796093022207 ELSE 17592186044415 END;
            n := CASE WHEN jsonb_typeof(f.value) = 'number' THEN (f.value #>> '{}')::numeric END;
            IF n IS NULL OR scale(n) > 0 OR n < low OR n > high THEN
                RETURN format('%s is %s; write a whole number from %s to %s', f.name, f.value, low, high);
            END IF;
        ELSIF most IS NOT NULL THEN
            IF jsonb_typeof(f.value) <> 'string'
               OR octet_length(convert_to(f.value #>> '{}', 'UTF8')) NOT BETWEEN 1 AND most THEN
                RETURN format('%s must be a text of 1 to %s bytes; leave it out for none', f.name, most);
            END IF;
        ELSIF f.name = 'headers' THEN
            IF jsonb_typeof(f.value) <> 'object' OR octet_length(convert_to(f.value::text, 'UTF8')) > 60000
               OR (SELECT count(*) > 64 OR bool_or(octet_length(h.key) = 0 OR jsonb_typeof(h.value) <> 'string')
                   FROM jsonb_each(f.value) h) THEN
                RETURN 'headers must be an object of up to 64 texts and 60000 bytes';
            END IF;
        ELSIF f.name = 'tags' THEN
            IF jsonb_typeof(f.value) <> 'array'
               OR (SELECT count(*) > 16 OR bool_or(jsonb_typeof(t.value) <> 'string' OR t.value = '""'
                                                   OR octet_length(convert_to(t.value #>> '{}', 'UTF8')) > 64)
                   FROM jsonb_array_elements(f.value) t) THEN
                RETURN 'tags must be an array of up to 16 texts of 1 to 64 bytes';
            END IF;
        ELSE
            RETURN format('%s is no option of a task', f.name);
        END IF;
    END LOOP;
    IF o ? 'due_ms' AND o ? 'delay_ms' THEN
        RETURN 'a task has a delay or a due time, not both: leave one of them out';
    END IF;
    IF o ? 'unique_ms' AND NOT o ? 'unique' THEN
        RETURN 'unique_for (unique_ms) says how long unique_key (unique) holds; set that, too';
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION $S.check_partition(q text, named text)
RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
DECLARE
    width int;
BEGIN
    IF named IS NULL OR named = q THEN
        RETURN NULL;
    END IF;
    SELECT (convert_from(r.value, 'UTF8')::jsonb -> 'layouts' -> -1 ->> 'partitions')::int INTO width
    FROM $S.records r WHERE r.name = convert_to('queue/' || q, 'UTF8');
    IF EXISTS (SELECT FROM generate_series(1, width - 1) p WHERE named = q || '__p' || p) THEN
        RETURN NULL;
    END IF;
    RETURN format('the queue %s has no partition %s; it has %s: ', q, named, width)
        || CASE width WHEN 1 THEN q WHEN 2 THEN format('%s and %1$s__p1', q)
                      ELSE format('%1$s, and %1$s__p1 to %1$s__p%2$s', q, width - 1) END;
END
$$;

CREATE FUNCTION $S.refuse_queue(q text)
RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    owner text := split_part(q, '__p', 1);
BEGIN
    IF position('__p' IN q) = 0 OR q IS NULL THEN
        RETURN format('there is no queue %s; make it with keyline queue create', quote_nullable(q));
    END IF;
    IF NOT EXISTS (SELECT FROM $S.records r WHERE r.name = convert_to('queue/' || owner, 'UTF8')) THEN
        RETURN format('%L names a partition of the queue %s, and there is none; make it with keyline queue create', q, owner);
    END IF;
    RETURN coalesce($S.check_partition(owner, q),
                    format('%L is a partition of the queue %s; name the queue, and the partition beside it: ', q, owner)
                    || format('partition => %L, or in put_many the option partition', q));
END
$$;

CREATE FUNCTION $S.check_snapshot(queues text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM $S.records r
    WHERE r.name IN (SELECT convert_to('queue/' || u.name, 'UTF8') FROM unnest(queues) AS u(name)) FOR KEY SHARE;
    RAISE EXCEPTION USING ERRCODE = 'KL004';
EXCEPTION WHEN SQLSTATE 'KL004' THEN
    RETURN;
END
$$;

CREATE FUNCTION $S.put_rows(queues text[], payloads bytea[], keys bytea[], kinds bytea[], options jsonb[])
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ #variable_conflict use_variable
DECLARE
    wrong text;
    last bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared($L, 9216 + (hashtext(q.name) & 1023))
    FROM (SELECT DISTINCT u.name FROM unnest(queues) AS u(name) WHERE u.name IS NOT NULL) q;
    SELECT $S.refuse_queue(q.name) INTO wrong
    FROM (SELECT DISTINCT u.name FROM unnest(queues) AS u(name)) q
    WHERE q.name IS NULL
       OR NOT EXISTS (SELECT FROM $S.records r WHERE r.name = convert_to('queue/' || q.name, 'UTF8'))
    LIMIT 1;
    IF wrong IS NULL AND current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM $S.check_snapshot(queues);
    END IF;
    IF wrong IS NULL THEN
        SELECT format('task %s: %s', t.n, t.why) INTO wrong
        FROM (SELECT u.n, CASE WHEN octet_length(u.key) > 512 THEN 'its key has more than 512 bytes'
                               WHEN octet_length(u.kind) > 255 THEN 'its kind has more than 255 bytes'
                               WHEN u.payload IS NULL
                               THEN 'its payload is NULL; pass one, or an empty text for a task that needs none'
                               WHEN octet_length(u.payload) > 1048576 THEN 'its payload has more than 1 MiB'
                               WHEN u.option IS NOT NULL
                               THEN coalesce($S.check_options(u.option),
                                             $S.check_partition(u.queue, u.option ->> 'partition')) END AS why
              FROM unnest(queues, keys, kinds, payloads, options)
                   WITH ORDINALITY AS u(queue, key, kind, payload, option, n)) t
        WHERE t.why IS NOT NULL ORDER BY t.n LIMIT 1;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = wrong;
    END IF;
    PERFORM pg_advisory_xact_lock_shared($L, 1073741824 + ((n.last_value >> 14) & 1073741823)::int)
    FROM $S.inbox_number_seq n;
    WITH i AS (
        INSERT INTO $S.inbox (queue, key, kind, payload, options)
        SELECT u.queue, CASE WHEN octet_length(u.key) > 0 THEN u.key END,
               CASE WHEN octet_length(u.kind) > 0 THEN u.kind END, CASE WHEN octet_length(u.payload) > 0 THEN u.payload END,
               CASE WHEN u.option ? 'delay_ms'
                    THEN u.option - 'delay_ms' || jsonb_build_object('due_ms',
                                                                     $S.now_ms() + (u.option ->> 'delay_ms')::bigint)
                    ELSE u.option END
        FROM unnest(queues, keys, kinds, payloads, options)
             WITH ORDINALITY AS u(queue, key, kind, payload, option, n) ORDER BY u.n
        RETURNING number)
    SELECT max(i.number) INTO last FROM i;
    PERFORM pg_notify($C, 'inbox') WHERE pg_try_advisory_xact_lock($L, 3);
    RETURN last;
END
$$;

CREATE FUNCTION $S.ms_of(t interval) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT floor(extract(epoch FROM t) * 1000)::bigint
$$;

CREATE FUNCTION $S.put(queue text, payload bytea, key text DEFAULT NULL, kind text DEFAULT NULL,
                       priority int DEFAULT NULL, delay interval DEFAULT NULL, due timestamptz DEFAULT NULL,
                       attempts_max int DEFAULT NULL, timeout interval DEFAULT NULL, unique_key text DEFAULT NULL,
                       unique_for interval DEFAULT NULL, group_name text DEFAULT NULL, traceparent text DEFAULT NULL,
                       headers jsonb DEFAULT NULL, tags text[] DEFAULT NULL, keep interval DEFAULT NULL,
                       partition text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$ #variable_conflict use_variable
DECLARE
    option jsonb;
BEGIN
    IF NOT isfinite(due) THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format('due is %s; name a time', due);
    END IF;
    IF num_nonnulls(priority, delay, due, attempts_max, timeout, unique_key, unique_for, group_name, traceparent,
                    headers, tags, keep, partition) > 0 THEN
        option := jsonb_strip_nulls(jsonb_build_object(
            'priority', priority, 'delay_ms', $S.ms_of(delay),
            'due_ms', floor(extract(epoch FROM due) * 1000)::bigint, 'attempts_max', attempts_max,
            'timeout_ms', $S.ms_of(timeout), 'unique', unique_key, 'unique_ms', $S.ms_of(unique_for),
            'group', group_name, 'traceparent', traceparent, 'tags', to_jsonb(tags),
            'keep_ms', $S.ms_of(keep), 'partition', partition));
        IF headers IS NOT NULL THEN
            option := option || jsonb_build_object('headers', headers);
        END IF;
    END IF;
    RETURN $S.put_rows(ARRAY[queue], ARRAY[payload], ARRAY[convert_to(key, 'UTF8')], ARRAY[convert_to(kind, 'UTF8')],
                       ARRAY[option]);
END
$$;

CREATE FUNCTION $S.put(queue text, payload text, key text DEFAULT NULL, kind text DEFAULT NULL,
                       priority int DEFAULT NULL, delay interval DEFAULT NULL, due timestamptz DEFAULT NULL,
                       attempts_max int DEFAULT NULL, timeout interval DEFAULT NULL, unique_key text DEFAULT NULL,
                       unique_for interval DEFAULT NULL, group_name text DEFAULT NULL, traceparent text DEFAULT NULL,
                       headers jsonb DEFAULT NULL, tags text[] DEFAULT NULL, keep interval DEFAULT NULL,
                       partition text DEFAULT NULL)
RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT $S.put(queue, convert_to(payload, 'UTF8'), key, kind, priority, delay, due, attempts_max, timeout, unique_key,
                  unique_for, group_name, traceparent, headers, tags, keep, partition)
$$;

CREATE FUNCTION $S.put(queue text, payload jsonb, key text DEFAULT NULL, kind text DEFAULT NULL,
                       priority int DEFAULT NULL, delay interval DEFAULT NULL, due timestamptz DEFAULT NULL,
                       attempts_max int DEFAULT NULL, timeout interval DEFAULT NULL, unique_key text DEFAULT NULL,
                       unique_for interval DEFAULT NULL, group_name text DEFAULT NULL, traceparent text DEFAULT NULL,
                       headers jsonb DEFAULT NULL, tags text[] DEFAULT NULL, keep interval DEFAULT NULL,
                       partition text DEFAULT NULL)
RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT $S.put(queue, convert_to(payload::text, 'UTF8'), key, kind, priority, delay, due, attempts_max, timeout,
                  unique_key, unique_for, group_name, traceparent, headers, tags, keep, partition)
$$;

CREATE FUNCTION $S.put_many(queue text, payloads bytea[], keys text[] DEFAULT NULL, kinds text[] DEFAULT NULL,
                            queues text[] DEFAULT NULL, options jsonb[] DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$ #variable_conflict use_variable
DECLARE
    number int := cardinality(payloads);
    short text;
BEGIN
    SELECT x.name INTO short FROM (VALUES ('keys', cardinality(keys)), ('kinds', cardinality(kinds)),
                                          ('queues', cardinality(queues)), ('options', cardinality(options)))
                                  AS x(name, length)
    WHERE x.length <> number LIMIT 1;
    IF short IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('there are %s payloads, and not as many %s; pass one for each, or none', number, short);
    END IF;
    IF number > 0 THEN
        PERFORM $S.put_rows(
            CASE WHEN queues IS NULL THEN array_fill(queue, ARRAY[number])
                 ELSE ARRAY(SELECT coalesce(u.name, queue) FROM unnest(queues) WITH ORDINALITY AS u(name, n)
                            ORDER BY u.n) END,
            payloads, ARRAY(SELECT convert_to(u.key, 'UTF8') FROM unnest(keys) WITH ORDINALITY AS u(key, n) ORDER BY u.n),
            ARRAY(SELECT convert_to(u.kind, 'UTF8') FROM unnest(kinds) WITH ORDINALITY AS u(kind, n) ORDER BY u.n),
            options);
    END IF;
    RETURN coalesce(number, 0);
END
$$;

CREATE FUNCTION $S.put_many(queue text, payloads text[], keys text[] DEFAULT NULL, kinds text[] DEFAULT NULL,
                            queues text[] DEFAULT NULL, options jsonb[] DEFAULT NULL)
RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT $S.put_many(queue,
                       ARRAY(SELECT convert_to(u.text, 'UTF8') FROM unnest(payloads) WITH ORDINALITY AS u(text, n)
                             ORDER BY u.n), keys, kinds, queues, options)
$$;

CREATE FUNCTION $S.put_many(queue text, payloads jsonb[], keys text[] DEFAULT NULL, kinds text[] DEFAULT NULL,
                            queues text[] DEFAULT NULL, options jsonb[] DEFAULT NULL)
RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT $S.put_many(queue,
                       ARRAY(SELECT convert_to(u.value::text, 'UTF8') FROM unnest(payloads) WITH ORDINALITY AS u(value, n)
                             ORDER BY u.n), keys, kinds, queues, options)
$$;

CREATE FUNCTION $S.inbox_look(q bytea, low bigint, OUT there boolean, OUT low_next bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    name text := convert_from(q, 'UTF8');
    last bigint;
    first bigint;
BEGIN
    PERFORM $S.begin_write();
    SELECT n.last_value INTO last FROM $S.inbox_number_seq n;
    low_next := CASE WHEN last < low THEN 0 ELSE low END;
    IF last - low_next >= 1024 THEN
        SELECT least(last, min((l.objid::bigint - 1073741824) << 14)) INTO last
        FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = $L::oid AND l.objid::bigint >= 1073741824
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
    ELSE
        last := low_next;
    END IF;
    SELECT i.number INTO first FROM $S.inbox i WHERE i.queue = name AND i.number >= low_next ORDER BY i.number LIMIT 1;
    there := first IS NOT NULL AND EXISTS (
        SELECT FROM $S.inbox i WHERE i.queue = name AND i.number >= first AND i.refused IS NULL);
    low_next := greatest(low_next, least(last, first));
END
$$;

CREATE FUNCTION $S.inbox_count(q bytea) RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN (SELECT count(*) FROM $S.inbox i WHERE i.queue = convert_from(q, 'UTF8') AND i.refused IS NULL);
END
$$;

CREATE FUNCTION $S.inbox_read(q bytea, low bigint, lim int, most bigint)
RETURNS TABLE (num bigint, key bytea, kind bytea, payload bytea, option bytea)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$ #variable_conflict use_column
BEGIN
    PERFORM $S.begin_write();
    PERFORM set_config('idle_in_transaction_session_timeout', '5s', true)
    WHERE current_setting('idle_in_transaction_session_timeout') = '0';
    IF NOT pg_try_advisory_xact_lock($L, 8192 + (hashtext(convert_from(q, 'UTF8')) & 1023)) THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT s.number, s.key, s.kind, s.payload, s.option
    FROM (SELECT i.*, row_number() OVER w AS n,
                 sum(128 + coalesce(octet_length(i.payload), 0) + coalesce(octet_length(i.key), 0) +
                     coalesce(octet_length(i.kind), 0) + coalesce(octet_length(i.option), 0)) OVER w AS total
          FROM (SELECT r.number, r.key, r.kind, r.payload, convert_to(r.options::text, 'UTF8') AS option
                FROM $S.inbox r WHERE r.queue = convert_from(q, 'UTF8') AND r.number >= low AND r.refused IS NULL
                ORDER BY r.number LIMIT lim) i
          WINDOW w AS (ORDER BY i.number ROWS UNBOUNDED PRECEDING)) s
    WHERE s.total <= most OR s.n = 1 ORDER BY s.number;
END
$$;

CREATE FUNCTION $S.inbox_end(q bytea, numbers bigint[], why bytea)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = off SET jit = off AS $$
BEGIN
    IF why IS NULL THEN
        DELETE FROM $S.inbox i USING unnest(numbers) AS u(number)
        WHERE i.queue = convert_from(q, 'UTF8') AND i.number BETWEEN numbers[1] AND numbers[cardinality(numbers)]
          AND i.number = u.number;
    ELSE
        UPDATE $S.inbox i SET refused = convert_from(why, 'UTF8')
        WHERE i.queue = convert_from(q, 'UTF8') AND i.number = ANY (numbers);
    END IF;
END
$$;
);
