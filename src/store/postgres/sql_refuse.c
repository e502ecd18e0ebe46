/* sql_refuse.c - what put() in SQL refuses, and how it says so: step 3 of the schema.
 *
 * A payload that is NULL is refused: it is most often a column that was not joined, or a result that did not come, and as an
 * empty payload it would be a task that nobody meant. The name of a partition in the place of the queue's is told from a
 * queue that there is not. No queue has __p in its name, so what stands before that is the queue's.
 *
 * Whoever puts holds an advisory lock of the queue until his transaction ends, which others who put share: so a queue is not
 * removed under a transaction that is open, whose tasks nobody would ever find (put_record in sql_records.c). */
#include "store/postgres/sql.h"

/* clang-format off */
const char kl__pg_sql_refuse[] = KL_SQL(
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

CREATE OR REPLACE FUNCTION $S.put_rows(queues text[], payloads bytea[], keys bytea[], kinds bytea[], options jsonb[])
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
);
