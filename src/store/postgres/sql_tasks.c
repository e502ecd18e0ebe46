/* sql_tasks.c - what waits, as functions of the schema: append, scan, read, counts.
 *
 * Functions rather than statements, because their plans are kept by the backend without anything being prepared by the
 * session: so they work behind a pooler that hands out connections per transaction. Planner settings are fixed, because
 * plans that were made while a table was empty would be kept when it is not.
 *
 * Every function looks for names in pg_catalog alone (sql_inbox.c sees to that): what others put into the schema `public`
 * is not called by mistake.
 *
 * Advisory locks keep shards apart: numbers from 1024 on for settles and fences, from 2048 on for appends and seals. A
 * shard shares its number with others, so that a call takes 1024 of them at most; and they are taken in order, so that
 * two calls never wait for each other. A statement sees everything that was committed before it got its locks, because a
 * function that writes takes a new snapshot for each statement (the isolation level is read committed), and takes it
 * after the locks of its tables: so a TRUNCATE never comes between the two. */
#include "store/postgres/sql.h"

/* clang-format off */
const char kl__pg_sql_tasks[] = KL_SQL(
CREATE FUNCTION $S.skip_positions() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock($L, 2);
    IF NOT EXISTS (SELECT FROM $S.started) THEN
        PERFORM setval($C || '.positions', s.last_value + 1073741824) FROM $S.positions s;
        PERFORM set_config('keyline.skipped', 'yes', true);
        INSERT INTO $S.started VALUES (true);
    END IF;
END
$$;

CREATE FUNCTION $S.commit_early() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('keyline.skipped', true) IS DISTINCT FROM 'yes' THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END
$$;

CREATE FUNCTION $S.append_begin(tok uuid, ps int[], ss int[], number int)
RETURNS bigint[] LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    answer bigint[];
    its_part smallint;
    is_started boolean;
    shut text;
BEGIN
    PERFORM $S.begin_write();
    PERFORM $S.lock_shards(2048, ps, ss);
    SELECT ARRAY[t.segment::bigint], t.part, EXISTS (SELECT FROM $S.started)
    INTO answer, its_part, is_started FROM $S.state t;
    IF NOT is_started THEN
        PERFORM $S.skip_positions();
    END IF;
    IF tok IS NOT NULL THEN
        IF EXISTS (SELECT FROM $S.tokens t WHERE t.token = tok) THEN
            RETURN NULL;
        END IF;
        INSERT INTO $S.tokens (token, part) VALUES (tok, its_part);
    END IF;
    SELECT string_agg(x.partition || '/' || x.shard, ' ') INTO shut
    FROM unnest(ps, ss) AS b(p, s) JOIN $S.sealed x ON x.partition = b.p AND x.shard = b.s;
    IF shut IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'KL001', MESSAGE = shut;
    END IF;
    FOR i IN 0 .. (number - 1) / 256 LOOP
        answer := answer || nextval($C || '.positions');
    END LOOP;
    RETURN answer;
END
$$;

CREATE FUNCTION $S.append(tok uuid, ps int[], ss int[], ats int[], lines int[],
                          ids uuid[], jobs uuid[], dues bigint[], groups smallint[], priorities smallint[],
                          keys bytea[], kinds bytea[], heads bytea[], payloads bytea[])
RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    drawn bigint[] := $S.append_begin(tok, ps, ss, array_length(ids, 1));
    skip bigint[];
BEGIN
    IF drawn IS NULL THEN
        RETURN false;
    END IF;
    IF tok IS NULL THEN
        SELECT array_agg(d.n) INTO skip FROM (
            SELECT a.n, row_number() OVER (PARTITION BY ps[a.at], a.id ORDER BY a.n) AS times, w.id IS NOT NULL AS waits
            FROM unnest(ats, ids) WITH ORDINALITY AS a(at, id, n)
            LEFT JOIN (
                SELECT DISTINCT e.partition, e.id
                FROM unnest(ps, ss) AS b(p, s)
                JOIN $S.entries e ON e.partition = b.p AND e.slot >= b.s * 64 AND e.slot < b.s * 64 + 64
                JOIN unnest(ids) AS i(id) ON i.id = e.id
                WHERE NOT EXISTS (
                    SELECT FROM $S.settled t
                    WHERE t.partition = e.partition AND t.shard = e.slot >> 6 AND t.last >= e.position
                      AND t.segment = e.segment AND e.position = ANY (t.positions))) w
            ON w.partition = ps[a.at] AND w.id = a.id) d
        WHERE d.times > 1 OR d.waits;
    END IF;

    INSERT INTO $S.entries (partition, slot, position, id, segment, job, due_ms, grp, priority, key, kind, headers,
                            payload)
    SELECT ps[a.at], ss[a.at] * 64 + a.line,
           (drawn[2 + (a.n - 1) / 256] * 256 + (a.n - 1) % 256) * 256 +
           CASE WHEN a.line = 32 THEN 0 ELSE drawn[1] * 64 END + a.line,
           a.id, CASE WHEN a.line = 32 THEN 0 ELSE drawn[1] END, a.job, a.due, a.grp, a.priority, a.key, a.kind, a.head,
           a.payload
    FROM unnest(ats, lines, ids, jobs, dues, groups, priorities, keys, kinds, heads, payloads)
         WITH ORDINALITY AS a(at, line, id, job, due, grp, priority, key, kind, head, payload, n)
    WHERE skip IS NULL OR a.n NOT IN (SELECT unnest(skip));

    PERFORM pg_notify($C, x.p::text) FROM (SELECT DISTINCT u.p FROM unnest(ps) AS u(p)) x;
    RETURN true;
END
$$;

CREATE FUNCTION $S.appended(p int) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
BEGIN
    RETURN (WITH RECURSIVE used AS (
        SELECT (SELECT min(e.slot) FROM $S.entries e WHERE e.partition = p) AS slot
        UNION ALL
        SELECT (SELECT min(e.slot) FROM $S.entries e WHERE e.partition = p AND e.slot > u.slot)
        FROM used u WHERE u.slot IS NOT NULL)
    SELECT coalesce(sum((SELECT max(e.position)::numeric FROM $S.entries e WHERE e.partition = p AND e.slot = u.slot))
                    % 4611686018427387904, 0)::bigint
    FROM used u WHERE u.slot IS NOT NULL);
END
$$;

CREATE FUNCTION $S.scan(ps int[], ss int[], lines int[], afters bigint[], dues bigint[], untils bigint[], lims int[])
RETURNS TABLE (n bigint, id uuid, pos bigint, due_ms bigint, bytes int, attempts int, grp smallint,
               priority int, key bytea)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0
SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_bitmapscan = off
AS $$ #variable_conflict use_column
DECLARE
    has_ready boolean;
    has_due boolean;
    has_retry boolean;
BEGIN
    SELECT bool_or(l.line < 32), bool_or(l.line = 32), bool_or(l.line = 33) INTO has_ready, has_due, has_retry
    FROM unnest(lines) AS l(line);
    IF has_ready THEN
        RETURN QUERY
        WITH a AS MATERIALIZED (
            SELECT * FROM unnest(ps, ss, lines, afters, lims) WITH ORDINALITY AS u(p, s, line, after, lim, n)
            WHERE u.line < 32),
        b AS MATERIALIZED (SELECT a.p, a.s, min(a.after) AS after FROM a GROUP BY a.p, a.s),
        gone AS MATERIALIZED (
            SELECT t.segment, t.partition, t.shard, x.position
            FROM b JOIN $S.settled t ON t.partition = b.p AND t.shard = b.s AND t.last > b.after
            CROSS JOIN LATERAL unnest(t.positions) AS x(position)),
        tried AS MATERIALIZED (
            SELECT r.partition, r.shard, r.position
            FROM b JOIN $S.retries r ON r.partition = b.p AND r.shard = b.s AND r.position > b.after)
        SELECT a.n, e.id, e.position, 0::bigint, e.bytes, 0, e.grp, a.line - 16, e.key
        FROM a CROSS JOIN LATERAL (
            SELECT e.id, e.position, e.grp, e.key,
                   coalesce(octet_length(e.key), 0) + coalesce(octet_length(e.kind), 0) +
                   coalesce(octet_length(e.headers), 0) + coalesce(octet_length(e.payload), 0) AS bytes
            FROM $S.entries e
            WHERE e.partition = a.p AND e.slot = a.s * 64 + a.line AND e.position > a.after
              AND (e.segment, a.p, a.s, e.position)
                  NOT IN (SELECT g.segment, g.partition, g.shard, g.position FROM gone g)
              AND (a.p, a.s, e.position) NOT IN (SELECT r.partition, r.shard, r.position FROM tried r)
            ORDER BY e.position LIMIT a.lim) e;
    END IF;
    IF has_due THEN
        RETURN QUERY
        WITH a AS MATERIALIZED (
            SELECT * FROM unnest(ps, ss, lines, afters, dues, untils, lims)
                     WITH ORDINALITY AS u(p, s, line, after, due, until, lim, n)
            WHERE u.line = 32),
        gone AS MATERIALIZED (
            SELECT t.partition, t.shard, x.position
            FROM a JOIN $S.settled_0 t ON t.partition = a.p AND t.shard = a.s
            CROSS JOIN LATERAL unnest(t.positions) AS x(position)
            UNION ALL
            SELECT r.partition, r.shard, r.position
            FROM a JOIN $S.retries r ON r.partition = a.p AND r.shard = a.s)
        SELECT a.n, e.id, e.position, e.due_ms, e.bytes, 0, e.grp, e.priority, e.key
        FROM a CROSS JOIN LATERAL (
            SELECT e.id, e.position, e.due_ms, e.grp, coalesce(e.priority, 0)::int AS priority, e.key,
                   coalesce(octet_length(e.key), 0) + coalesce(octet_length(e.kind), 0) +
                   coalesce(octet_length(e.headers), 0) + coalesce(octet_length(e.payload), 0) AS bytes
            FROM $S.entries_0 e
            WHERE e.partition = a.p AND e.slot = a.s * 64 + 32 AND e.due_ms IS NOT NULL
              AND (e.due_ms, e.position) > (a.due, a.after) AND e.due_ms <= a.until
              AND (a.p, a.s, e.position) NOT IN (SELECT g.partition, g.shard, g.position FROM gone g)
            ORDER BY e.due_ms, e.position LIMIT a.lim) e;
    END IF;
    IF has_retry THEN
        RETURN QUERY
        SELECT a.n, e.id, e.position, e.not_before_ms, e.bytes, e.attempts, e.grp, e.priority, e.key
        FROM unnest(ps, ss, lines, afters, lims) WITH ORDINALITY AS a(p, s, line, after, lim, n)
        CROSS JOIN LATERAL (
            SELECT e.id, e.position, r.not_before_ms, r.attempts, e.grp, e.key,
                   coalesce(e.priority, CASE WHEN e.slot & 63 < 32 THEN (e.slot & 63) - 16 ELSE 0 END)::int AS priority,
                   coalesce(octet_length(e.key), 0) + coalesce(octet_length(e.kind), 0) +
                   coalesce(octet_length(e.headers), 0) + coalesce(octet_length(e.payload), 0) AS bytes
            FROM $S.retries r
            JOIN $S.entries e ON e.partition = r.partition AND e.slot = r.shard * 64 + (r.position & 63)::int
                             AND e.position = r.position
            WHERE r.partition = a.p AND r.shard = a.s AND r.position > a.after
              AND NOT EXISTS (
                  SELECT FROM $S.settled t
                  WHERE t.partition = r.partition AND t.shard = r.shard AND t.last >= r.position
                    AND t.segment = e.segment AND r.position = ANY (t.positions))
            ORDER BY r.position LIMIT a.lim) e
        WHERE a.line = 33;
    END IF;
END
$$;

CREATE FUNCTION $S.read_waiting(ps int[], ss int[], poss bigint[], ids uuid[])
RETURNS TABLE (n bigint, state int, partition int, shard int, id uuid, pos bigint, attempts int,
               not_before_ms bigint, finished_ms bigint, job uuid, due_ms bigint, grp smallint, priority int,
               key bytea, kind bytea, headers bytea, payload bytea, error bytea, result bytea)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0
SET plan_cache_mode = force_generic_plan
AS $$ #variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT a.n, 1, a.p, a.s, e.id, e.position, coalesce(r.attempts, 0), coalesce(r.not_before_ms, e.due_ms, 0),
           0::bigint, e.job, e.due_ms, e.grp,
           coalesce(e.priority, CASE WHEN e.slot & 63 < 32 THEN (e.slot & 63) - 16 ELSE 0 END)::int,
           e.key, e.kind, e.headers, e.payload, NULL::bytea, NULL::bytea
    FROM unnest(ps, ss, poss, ids) WITH ORDINALITY AS a(p, s, pos, id, n)
    JOIN $S.entries e ON e.segment = (a.pos >> 6 & 3)::smallint AND e.partition = a.p
                     AND e.slot = a.s * 64 + (a.pos & 63)::int AND e.position = a.pos AND e.id = a.id
    LEFT JOIN $S.retries r ON r.partition = a.p AND r.shard = a.s AND r.position = a.pos
    WHERE NOT EXISTS (
        SELECT FROM $S.settled t
        WHERE t.segment = (a.pos >> 6 & 3)::smallint AND t.partition = a.p AND t.shard = a.s AND t.last >= a.pos
          AND t.first <= a.pos AND a.pos = ANY (t.positions))
    ORDER BY a.n;
END
$$;

CREATE FUNCTION $S.read(ps int[], ss int[], poss bigint[], ids uuid[], most bigint)
RETURNS TABLE (n bigint, state int, partition int, shard int, id uuid, pos bigint, attempts int,
               not_before_ms bigint, finished_ms bigint, job uuid, due_ms bigint, grp smallint, priority int,
               key bytea, kind bytea, headers bytea, payload bytea, error bytea, result bytea)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0
AS $$ #variable_conflict use_column
DECLARE
    at_ms bigint := $S.now_ms();
BEGIN
    RETURN QUERY
    WITH a AS MATERIALIZED (
        SELECT * FROM unnest(ps, ss, poss, ids) WITH ORDINALITY AS u(p, s, pos, id, n)),
    sure AS MATERIALIZED (
        SELECT a.n, a.p, a.s, e.*
        FROM a JOIN $S.entries e ON e.partition = a.p AND e.slot = a.s * 64 + (a.pos & 63)::int
                                AND e.position = a.pos AND e.id = a.id
        WHERE a.pos > 0),
    rest AS MATERIALIZED (
        SELECT a.n, a.p, a.s, a.id FROM a WHERE a.n NOT IN (SELECT f.n FROM sure f)),
    hits AS MATERIALIZED (
        SELECT b.p, b.s, e.*
        FROM (SELECT DISTINCT q.p, q.s FROM rest q) b
        JOIN $S.entries e ON e.partition = b.p AND e.slot >= b.s * 64 AND e.slot < b.s * 64 + 64
        WHERE e.id IN (SELECT q.id FROM rest q)),
    found AS MATERIALIZED (
        SELECT * FROM sure
        UNION ALL
        SELECT r.n, h.* FROM hits h JOIN rest r ON r.p = h.p AND r.s = h.s AND r.id = h.id),
    low AS MATERIALIZED (
        SELECT f.p, f.s, min(f.position) AS position FROM found f GROUP BY f.p, f.s),
    gone AS MATERIALIZED (
        SELECT t.segment, t.partition, t.shard, x.position
        FROM low JOIN $S.settled t ON t.partition = low.p AND t.shard = low.s AND t.last >= low.position
        CROSS JOIN LATERAL unnest(t.positions) AS x(position)),
    waits AS MATERIALIZED (
        SELECT f.* FROM found f
        WHERE (f.segment, f.p, f.s, f.position) NOT IN (SELECT g.segment, g.partition, g.shard, g.position FROM gone g)),
    shown AS (
        SELECT e.n, 1 AS state, e.p, e.s, e.id, e.position, coalesce(r.attempts, 0) AS attempts,
               coalesce(r.not_before_ms, e.due_ms, 0) AS not_before_ms, 0::bigint AS finished_ms,
               e.job, e.due_ms, e.grp,
               coalesce(e.priority, CASE WHEN e.slot & 63 < 32 THEN (e.slot & 63) - 16 ELSE 0 END)::int AS priority,
               e.key, e.kind, e.headers, e.payload, NULL::bytea AS error, NULL::bytea AS result
        FROM waits e
        LEFT JOIN $S.retries r ON r.partition = e.p AND r.shard = e.s AND r.position = e.position
        UNION ALL
        SELECT a.n, coalesce(k.state, 0)::int, a.p, a.s, a.id, 0, coalesce(k.attempts, 0), 0,
               coalesce(k.finished_ms, 0), k.job, k.due_ms, k.grp, coalesce(k.priority, 0)::int, k.key, k.kind,
               k.headers, k.payload, k.errors[1], k.result
        FROM a LEFT JOIN $S.kept k ON k.partition = a.p AND k.shard = a.s AND k.id = a.id AND k.expires_ms > at_ms
        WHERE a.n NOT IN (SELECT w.n FROM waits w)),
    sized AS (
        SELECT s.*, sum(coalesce(octet_length(s.key), 0) + coalesce(octet_length(s.kind), 0) +
                        coalesce(octet_length(s.headers), 0) + coalesce(octet_length(s.payload), 0) +
                        coalesce(octet_length(s.error), 0) + coalesce(octet_length(s.result), 0))
                    OVER (ORDER BY s.n) AS total
        FROM shown s)
    SELECT z.n, z.state, z.p, z.s, z.id, z.position, z.attempts, z.not_before_ms, z.finished_ms, z.job, z.due_ms,
           z.grp, z.priority, z.key, z.kind, z.headers, z.payload, z.error, z.result
    FROM sized z WHERE z.total <= most OR z.n = 1 ORDER BY z.n;
END
$$;

CREATE FUNCTION $S.live(p int, low int, high int) RETURNS TABLE (slot int, number bigint, first bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0 SET enable_nestloop = off
AS $$ #variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT e.slot, count(*), min(e.position)
    FROM $S.entries e
    WHERE e.partition = p AND e.slot BETWEEN low * 64 AND high * 64 + 63
      AND NOT EXISTS (
          SELECT FROM (SELECT t.segment, t.shard, unnest(t.positions) AS position FROM $S.settled t
                       WHERE t.partition = p AND t.shard BETWEEN low AND high) g
          WHERE g.segment = e.segment AND g.shard = e.slot >> 6 AND g.position = e.position)
      AND NOT EXISTS (
          SELECT FROM $S.retries r WHERE r.partition = p AND r.shard BETWEEN low AND high
                                     AND r.shard = e.slot >> 6 AND r.position = e.position)
    GROUP BY e.slot;
END
$$;

CREATE FUNCTION $S.counts(p int, low int, high int, finished boolean,
                          OUT ready bigint, OUT due bigint, OUT retry bigint, OUT priorities bigint, OUT firsts uuid[],
                          OUT shard_prefix_len int, OUT done bigint, OUT dead bigint, OUT cancelled bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
DECLARE
    at_ms bigint := $S.now_ms();
BEGIN
    WITH live AS MATERIALIZED (SELECT * FROM $S.live(p, low, high))
    SELECT coalesce(sum(l.number) FILTER (WHERE l.slot & 63 < 32), 0)::bigint,
           coalesce(sum(l.number) FILTER (WHERE l.slot & 63 = 32), 0)::bigint,
           (SELECT count(*) FROM $S.retries r WHERE r.partition = p AND r.shard BETWEEN low AND high),
           coalesce(bit_or(1::bigint << (l.slot & 63)) FILTER (WHERE l.slot & 63 < 32), 0),
           (SELECT array_agg(e.id) FROM live f JOIN $S.entries e
            ON e.partition = p AND e.slot = f.slot AND e.position = f.first WHERE f.slot & 63 < 32),
           (SELECT t.shard_prefix_len FROM $S.partitions t WHERE t.number = p)
    INTO ready, due, retry, priorities, firsts, shard_prefix_len FROM live l;
    IF finished THEN
        SELECT count(*) FILTER (WHERE k.state = 2), count(*) FILTER (WHERE k.state = 3),
               count(*) FILTER (WHERE k.state = 4)
        INTO done, dead, cancelled
        FROM $S.kept k WHERE k.partition = p AND k.expires_ms > at_ms;
    END IF;
END
$$;

CREATE FUNCTION $S.counts_of_job(p int, j uuid, OUT done bigint, OUT dead bigint, OUT cancelled bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    at_ms bigint := $S.now_ms();
BEGIN
    SELECT count(*) FILTER (WHERE k.state = 2), count(*) FILTER (WHERE k.state = 3), count(*) FILTER (WHERE k.state = 4)
    INTO done, dead, cancelled
    FROM $S.kept k WHERE k.partition = p AND k.job = j AND k.expires_ms > at_ms;
END
$$;
);
