/* sql_tasks.c - what waits, as functions of the schema: append, scan, read, counts.
 *
 * Functions rather than statements, because their plans are kept by the backend without anything being prepared by the
 * session: so they work behind a pooler that hands out connections per transaction. Planner settings are fixed, because
 * plans that were made while a table was empty would be kept when it is not.
 *
 * Every function looks for names in pg_catalog alone (sql_tables.c sees to that): what others put into the schema
 * `public` is not called by mistake.
 *
 * Advisory locks keep shards apart: numbers from 1024 on for settles and fences, from 2048 on for appends and seals. A
 * shard shares its number with others, so that a call takes 1024 of them at most; and they are taken in order, so that
 * two calls never wait for each other. A statement sees everything that was committed before it got its locks, because
 * a function that writes takes a new snapshot for each statement (the isolation level is read committed), and takes it
 * after the locks of its tables: so a TRUNCATE never comes between the two.
 *
 * What a statement costs before it reads anything is most of what a call costs where there is little to read: so scan
 * asks first, by index alone, which lines have something, and leaves out what has nothing.
 *
 * What is read together has one snapshot: else what moves, or is cleared away, between two would be seen twice or not
 * at all. So a function that is called inside a query which reads tasks is STABLE, and then has the snapshot of that
 * query, whose lock on `entries` keeps a TRUNCATE off; or the query around it reads nothing that goes with what it
 * reads.
 *
 * Where the sequences may have been set back, they go on far ahead: 2^30 numbers, and up to as many more by chance, and
 * at least where they would be if 16 had been drawn in each millisecond since 2020. Whatever was drawn since a copy was
 * made is below that, unless it was more; and two that go on from one copy draw different ones. There are 2^47 numbers.
 * A new schema begins so, too: somebody may still know one that was dropped.
 *
 * What an append finds done already, by its token or because its tasks wait, may have been committed without waiting
 * for the disk by somebody who did not come to do so (append.c). So it waits for the disk itself, though it writes
 * nothing: an append of tasks that wait by a message in its own transaction, one whose token is known by another
 * call. */
#include "store/postgres/sql.h"

/* clang-format off */
const char kl__pg_sql_tasks[] = KL_SQL(
CREATE FUNCTION $S.note_started() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM $S.started;
    INSERT INTO $S.started (file, since) VALUES (pg_relation_filepath('$S.started'), pg_postmaster_start_time());
END
$$;

CREATE FUNCTION $S.far_ahead(last bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN GREATEST(last + 1073741824 + floor(random() * 1073741824)::bigint,
                    floor((extract(epoch FROM clock_timestamp()) - 1577836800) * 16000)::bigint);
END
$$;

CREATE FUNCTION $S.skip_positions() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock($L, 2);
    IF NOT EXISTS (SELECT FROM $S.started s
                   WHERE s.since = pg_postmaster_start_time() AND s.file = pg_relation_filepath(s.tableoid)) THEN
        PERFORM setval($C || '.positions', $S.far_ahead(s.last_value)) FROM $S.positions s;
        PERFORM setval($C || '.versions', $S.far_ahead(s.last_value)) FROM $S.versions s;
        PERFORM setval($C || '.quiet_versions', 4503599627370496 + $S.far_ahead(s.last_value - 4503599627370496))
        FROM $S.quiet_versions s;
        PERFORM set_config('keyline.skipped', 'yes', true);
        PERFORM $S.note_started();
    END IF;
END
$$;

SELECT $S.skip_positions();

CREATE FUNCTION $S.flush() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM pg_logical_emit_message(true, 'keyline', repeat('-', 0));
END
$$;

CREATE FUNCTION $S.append_begin(toks uuid[], ps int[], ss int[], draws int)
RETURNS bigint[] LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    found record;
    answer bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') = 'off' THEN
        PERFORM $S.begin_write();
    END IF;
    PERFORM pg_advisory_xact_lock($L, x.number)
    FROM (SELECT DISTINCT 2048 + (hashint8((u.p::bigint << 16) | u.s) & 1023) AS number
          FROM unnest(ps, ss) AS u(p, s) ORDER BY 1) x;
    SELECT t.segment, t.part,
           EXISTS (SELECT FROM $S.started s WHERE s.since = pg_postmaster_start_time()
                                              AND s.file = pg_relation_filepath(s.tableoid)) AS is_started,
           EXISTS (SELECT FROM $S.tokens k WHERE k.token = ANY (toks)) AS is_known,
           EXISTS (SELECT FROM $S.sealed) AS are_sealed
    INTO found FROM $S.state t;
    IF NOT found.is_started THEN
        PERFORM $S.skip_positions();
    END IF;
    IF found.is_known THEN
        RETURN NULL;
    END IF;
    INSERT INTO $S.tokens (token, part) SELECT u.token, found.part FROM unnest(toks) AS u(token);
    IF found.are_sealed AND EXISTS (
        SELECT FROM unnest(ps, ss) AS b(p, s) JOIN $S.sealed x ON x.partition = b.p AND x.shard = b.s) THEN
        RAISE EXCEPTION USING ERRCODE = 'KL001', MESSAGE =
            'keyline: a shard is sealed, because its queue has a newer layout; the client reads that and goes on';
    END IF;
    answer := ARRAY[found.segment::bigint];
    FOR i IN 1 .. draws LOOP
        answer := answer || nextval('$S.positions');
    END LOOP;
    RETURN answer;
END
$$;

CREATE FUNCTION $S.append_skips(ps int[], ss int[], row_ats int[], row_ids uuid[])
RETURNS int[] LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT d.n::int FROM (
            SELECT a.n, row_number() OVER (PARTITION BY ps[a.at], a.id ORDER BY a.n) AS times, w.id IS NOT NULL AS waits
            FROM unnest(row_ats, row_ids) WITH ORDINALITY AS a(at, id, n)
            LEFT JOIN (
                SELECT DISTINCT e.partition, e.id
                FROM unnest(ps, ss) AS b(p, s)
                JOIN $S.waiting e ON e.partition = b.p AND e.slot >= b.s * 64 AND e.slot < b.s * 64 + 64
                WHERE e.id = ANY (row_ids)) w
            ON w.partition = ps[a.at] AND w.id = a.id) d
        WHERE d.times > 1 OR d.waits);
END
$$;

CREATE FUNCTION $S.append(toks uuid[], ps int[], ss int[], draws int, row_ats int[], row_ids uuid[], early boolean,
                          row_ps int[], row_slots int[], row_draws int[], row_lasts int[], numbers int[], firsts int[],
                          dues bigint[], priorities smallint[], larges int[], jobs uuid[], groups smallint[],
                          tasks bytea[])
RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$ #variable_conflict use_variable
DECLARE
    drawn bigint[] := $S.append_begin(toks, ps, ss, draws);
    skips int[] := ARRAY[]::int[];
BEGIN
    IF drawn IS NULL THEN
        RETURN NULL;
    END IF;
    IF toks IS NULL THEN
        skips := $S.append_skips(ps, ss, row_ats, row_ids);
        IF cardinality(skips) > 0 THEN
            PERFORM $S.flush();
        END IF;
    END IF;
    INSERT INTO $S.entries (partition, slot, last, segment, number, due_ms, priority, bytes, jobs, groups, tasks)
    SELECT a.p, a.slot,
           (drawn[1 + a.draw] * 256 + a.at) * 256 + CASE WHEN a.line = 32 THEN 0 ELSE drawn[1] * 64 END + a.line,
           CASE WHEN a.line = 32 THEN 0 ELSE drawn[1] END, a.number, a.due, a.priority, a.large,
           jobs[a.first : a.first + a.number - 1], groups[a.first : a.first + a.number - 1], a.its_tasks
    FROM (SELECT generate_subscripts(row_ps, 1) AS n, unnest(row_ps) AS p, unnest(row_slots) AS slot,
                 unnest(row_slots) & 63 AS line, unnest(row_draws) AS draw, unnest(row_lasts) AS at,
                 unnest(numbers) AS number, unnest(firsts) AS first, unnest(dues) AS due, unnest(priorities) AS priority,
                 unnest(larges) AS large, unnest(tasks) AS its_tasks) a
    WHERE a.n <> ALL (skips);
    PERFORM pg_notify($C, x.p::text) FROM (SELECT DISTINCT u.p FROM unnest(ps) AS u(p)) x;
    IF early AND current_setting('keyline.skipped', true) IS DISTINCT FROM 'yes' THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN drawn[2];
END
$$;

CREATE FUNCTION $S.append_one(tok uuid, p int, s int, line int, due bigint, rank smallint, large int, job uuid,
                              grp smallint, packed bytea)
RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$ #variable_conflict use_variable
DECLARE
    found record;
    its_segment smallint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') = 'off' THEN
        PERFORM $S.begin_write();
    END IF;
    PERFORM pg_advisory_xact_lock($L, 2048 + (hashint8((p::bigint << 16) | s) & 1023));
    SELECT t.segment, t.part,
           EXISTS (SELECT FROM $S.started s WHERE s.since = pg_postmaster_start_time()
                                              AND s.file = pg_relation_filepath(s.tableoid)) AS is_started,
           EXISTS (SELECT FROM $S.tokens k WHERE k.token = tok) AS is_known,
           EXISTS (SELECT FROM $S.sealed x WHERE x.partition = p AND x.shard = s) AS is_sealed
    INTO found FROM $S.state t;
    IF NOT found.is_started THEN
        PERFORM $S.skip_positions();
    END IF;
    IF found.is_known THEN
        RETURN false;
    END IF;
    IF found.is_sealed THEN
        RAISE EXCEPTION USING ERRCODE = 'KL001', MESSAGE =
            'keyline: a shard is sealed, because its queue has a newer layout; the client reads that and goes on';
    END IF;
    INSERT INTO $S.tokens (token, part) VALUES (tok, found.part);
    its_segment := CASE WHEN line = 32 THEN 0 ELSE found.segment END;
    INSERT INTO $S.entries (partition, slot, last, segment, number, due_ms, priority, bytes, jobs, groups, tasks)
    VALUES (p, s * 64 + line, nextval('$S.positions') * 65536 + its_segment * 64 + line, its_segment, 1, due, rank,
            large, CASE WHEN job IS NOT NULL THEN ARRAY[job] END, CASE WHEN grp IS NOT NULL THEN ARRAY[grp] END, packed);
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
    SELECT coalesce(sum((SELECT max(e.last)::numeric FROM $S.entries e WHERE e.partition = p AND e.slot = u.slot))
                    % 4611686018427387904, 0)::bigint
    FROM used u WHERE u.slot IS NOT NULL);
END
$$;

CREATE FUNCTION $S.gone(bp int[], bs int[], afters bigint[])
RETURNS TABLE (segment smallint, partition int, slot int, row_key bigint, number bigint, positions bigint[])
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0
SET plan_cache_mode = force_generic_plan SET enable_sort = off
AS $$ #variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT h.segment, h.partition, h.slot, CASE h.segment WHEN 0 THEN h.position ELSE h.position >> 16 END AS row_key,
           count(*), array_agg(h.position)
    FROM (SELECT t.segment, t.partition, t.shard * 64 + (x.position & 63)::int AS slot, x.position
          FROM unnest(bp, bs, afters) AS b(p, s, after)
          JOIN $S.settled t ON t.partition = b.p AND t.shard = b.s AND t.last > b.after
          CROSS JOIN LATERAL unnest(t.positions) AS x(position)
          UNION
          SELECT g.segment::smallint, r.partition, r.shard * 64 + (r.position & 63)::int, r.position
          FROM unnest(bp, bs, afters) AS b(p, s, after)
          JOIN $S.retries r ON r.partition = b.p AND r.shard = b.s AND r.position > b.after
          CROSS JOIN LATERAL (SELECT 0 UNION SELECT (r.position >> 6 & 3)::int) AS g(segment)) h
    GROUP BY 1, 2, 3, 4;
END
$$;

CREATE FUNCTION $S.scan(ps int[], ss int[], lines int[], afters bigint[], dues bigint[], untils bigint[], lims int[])
RETURNS TABLE (n int, last bigint, due_ms bigint, attempts int, priority int, bytes int, number int, jobs uuid[],
               groups smallint[], tasks bytea, hidden bigint[])
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0
SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_bitmapscan = off
AS $$ #variable_conflict use_column
DECLARE
    ready bigint[];
    has_due boolean;
    has_retry boolean;
    found bigint;
BEGIN
    SELECT array_agg(a.n) FILTER (WHERE a.line < 32), bool_or(a.line = 32), bool_or(a.line = 33)
    INTO ready, has_due, has_retry
    FROM unnest(ps, ss, lines, afters, dues, untils) WITH ORDINALITY AS a(p, s, line, after, due, until, n)
    WHERE a.line = 33
       OR (a.line < 32 AND EXISTS (SELECT FROM $S.entries_1 e
                                   WHERE e.partition = a.p AND e.slot = a.s * 64 + a.line AND e.last > a.after))
       OR (a.line < 32 AND EXISTS (SELECT FROM $S.entries_2 e
                                   WHERE e.partition = a.p AND e.slot = a.s * 64 + a.line AND e.last > a.after))
       OR (a.line < 32 AND EXISTS (SELECT FROM $S.entries_0 e
                                   WHERE e.partition = a.p AND e.slot = a.s * 64 + a.line AND e.last > a.after))
       OR (a.line = 32 AND EXISTS (SELECT FROM $S.entries_0 e
                                   WHERE e.partition = a.p AND e.slot = a.s * 64 + 32 AND e.due_ms IS NOT NULL
                                     AND (e.due_ms, e.last) > (a.due, a.after) AND e.due_ms <= a.until));
    IF ready IS NOT NULL THEN
        RETURN QUERY
        SELECT a.n::int, e.last, NULL::bigint, NULL::int, NULL::int, e.bytes, e.number::int, e.jobs, e.groups,
               CASE WHEN e.bytes IS NULL THEN e.tasks ELSE substr(e.tasks, 1, 537) END, NULL::bigint[]
        FROM unnest(ready) AS a(n)
        CROSS JOIN LATERAL (
            SELECT * FROM $S.entries e
            WHERE e.partition = ps[a.n] AND e.slot = ss[a.n] * 64 + lines[a.n] AND e.last > afters[a.n]
            ORDER BY e.last LIMIT lims[a.n]) e
        WHERE NOT (SELECT EXISTS (
            SELECT FROM unnest(ready) AS b(n)
            WHERE EXISTS (SELECT FROM $S.settled t
                          WHERE t.partition = ps[b.n] AND t.shard = ss[b.n] AND t.last > afters[b.n])
               OR EXISTS (SELECT FROM $S.retries r
                          WHERE r.partition = ps[b.n] AND r.shard = ss[b.n] AND r.position > afters[b.n])));
        GET DIAGNOSTICS found = ROW_COUNT;
    END IF;
    IF ready IS NOT NULL AND found = 0 THEN
        RETURN QUERY
        WITH a AS MATERIALIZED (
            SELECT ps[u.n] AS p, ss[u.n] AS s, lines[u.n] AS line, afters[u.n] AS after, lims[u.n] AS lim, u.n
            FROM unnest(ready) AS u(n)),
        b AS MATERIALIZED (SELECT a.p, a.s, min(a.after) AS after FROM a GROUP BY a.p, a.s),
        gone AS MATERIALIZED (
            SELECT * FROM $S.gone(ARRAY(SELECT b.p FROM b), ARRAY(SELECT b.s FROM b), ARRAY(SELECT b.after FROM b))),
        x AS MATERIALIZED (
            SELECT a.n, e.*, CASE e.segment WHEN 0 THEN e.last ELSE e.last >> 16 END AS row_key
            FROM a CROSS JOIN LATERAL (
                SELECT * FROM $S.entries e
                WHERE e.partition = a.p AND e.slot = a.s * 64 + a.line AND e.last > a.after
                  AND (e.segment, e.partition, e.slot, CASE e.segment WHEN 0 THEN e.last ELSE e.last >> 16 END,
                       e.number::bigint)
                      NOT IN (SELECT g.segment, g.partition, g.slot, g.row_key, g.number FROM gone g)
                ORDER BY e.last LIMIT a.lim) e)
        SELECT x.n::int, x.last, NULL::bigint, NULL::int, NULL::int, x.bytes, x.number::int, x.jobs, x.groups,
               CASE WHEN x.bytes IS NULL THEN x.tasks ELSE substr(x.tasks, 1, 537) END, g.positions
        FROM x LEFT JOIN gone g ON g.segment = x.segment AND g.partition = x.partition AND g.slot = x.slot
                               AND g.row_key = x.row_key;
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
        SELECT a.n::int, e.last, e.due_ms, NULL::int, coalesce(e.priority, 0)::int, e.bytes, e.number::int, e.jobs,
               e.groups, CASE WHEN e.bytes IS NULL THEN e.tasks ELSE substr(e.tasks, 1, 537) END, NULL::bigint[]
        FROM a CROSS JOIN LATERAL (
            SELECT * FROM $S.entries_0 e
            WHERE e.partition = a.p AND e.slot = a.s * 64 + 32 AND e.due_ms IS NOT NULL
              AND (e.due_ms, e.last) > (a.due, a.after) AND e.due_ms <= a.until
              AND (a.p, a.s, e.last) NOT IN (SELECT g.partition, g.shard, g.position FROM gone g)
            ORDER BY e.due_ms, e.last LIMIT a.lim) e;
    END IF;
    IF has_retry THEN
        RETURN QUERY
        SELECT a.n::int, e.position, e.not_before_ms, e.attempts, e.priority,
               coalesce(octet_length(e.key), 0) + coalesce(octet_length(e.kind), 0) +
               coalesce(octet_length(e.headers), 0) + coalesce(octet_length(e.payload), 0),
               1, NULL::uuid[], ARRAY[e.grp],
               $S.pack((e.position >> 8 & 255)::int, e.id, e.key, NULL::bytea, NULL::bytea, NULL::bytea), NULL::bigint[]
        FROM unnest(ps, ss, lines, afters, lims) WITH ORDINALITY AS a(p, s, line, after, lim, n)
        CROSS JOIN LATERAL (
            SELECT e.*, r.not_before_ms, r.attempts
            FROM $S.retries r
            JOIN $S.waiting e ON e.partition = r.partition AND e.slot = r.shard * 64 + (r.position & 63)::int
                             AND e.last BETWEEN r.position AND r.position | 65535 AND e.position = r.position
            WHERE r.partition = a.p AND r.shard = a.s AND r.position > a.after
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
           0::bigint, e.job, e.due_ms, e.grp, e.priority, e.key, e.kind, e.headers, e.payload, NULL::bytea, NULL::bytea
    FROM unnest(ps, ss, poss, ids) WITH ORDINALITY AS a(p, s, pos, id, n)
    JOIN $S.waiting e ON e.segment = (a.pos >> 6 & 3)::smallint AND e.partition = a.p
                     AND e.slot = a.s * 64 + (a.pos & 63)::int AND e.last BETWEEN a.pos AND a.pos | 65535
                     AND e.position = a.pos AND e.id = a.id
    LEFT JOIN $S.retries r ON r.partition = a.p AND r.shard = a.s AND r.position = a.pos
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
        FROM a JOIN $S.tasks e ON e.partition = a.p AND e.slot = a.s * 64 + (a.pos & 63)::int
                              AND e.last BETWEEN a.pos AND a.pos | 65535 AND e.position = a.pos AND e.id = a.id
        WHERE a.pos > 0),
    rest AS MATERIALIZED (
        SELECT a.n, a.p, a.s, a.id FROM a WHERE a.n NOT IN (SELECT f.n FROM sure f)),
    hits AS MATERIALIZED (
        SELECT b.p, b.s, e.*
        FROM (SELECT DISTINCT q.p, q.s FROM rest q) b
        JOIN $S.tasks e ON e.partition = b.p AND e.slot >= b.s * 64 AND e.slot < b.s * 64 + 64
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
        SELECT DISTINCT ON (f.n) f.* FROM found f
        WHERE (f.segment, f.p, f.s, f.position) NOT IN (SELECT g.segment, g.partition, g.shard, g.position FROM gone g)
        ORDER BY f.n, f.position),
    shown AS (
        SELECT e.n, 1 AS state, e.p, e.s, e.id, e.position, coalesce(r.attempts, 0) AS attempts,
               coalesce(r.not_before_ms, e.due_ms, 0) AS not_before_ms, 0::bigint AS finished_ms,
               e.job, e.due_ms, e.grp, e.priority,
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

CREATE FUNCTION $S.lines(p int) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (WITH RECURSIVE used AS (
        SELECT -1 AS slot
        UNION ALL
        SELECT LEAST((SELECT e.slot FROM $S.entries_0 e WHERE e.partition = p AND e.slot > u.slot ORDER BY 1 LIMIT 1),
                     (SELECT e.slot FROM $S.entries_1 e WHERE e.partition = p AND e.slot > u.slot ORDER BY 1 LIMIT 1),
                     (SELECT e.slot FROM $S.entries_2 e WHERE e.partition = p AND e.slot > u.slot ORDER BY 1 LIMIT 1))
        FROM used u WHERE u.slot IS NOT NULL)
    SELECT coalesce(bit_or(1::bigint << (u.slot & 63)), 0) FROM used u WHERE u.slot >= 0 AND u.slot & 63 < 32);
END
$$;

CREATE FUNCTION $S.live(p int, low int, high int) RETURNS TABLE (slot int, number bigint, first uuid)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0 SET enable_nestloop = off
AS $$ #variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH gone AS MATERIALIZED (
        SELECT h.segment, h.slot, CASE h.segment WHEN 0 THEN h.position ELSE h.position >> 16 END AS row_key,
               count(*) AS number
        FROM (SELECT t.segment, t.shard * 64 + (t.position & 63)::int AS slot, t.position
              FROM (SELECT s.segment, s.shard, unnest(s.positions) AS position FROM $S.settled s
                    WHERE s.partition = p AND s.shard BETWEEN low AND high) t
              UNION
              SELECT r.segment::smallint, r.shard * 64 + (r.position & 63)::int, r.position
              FROM (SELECT y.shard, y.position, unnest(ARRAY[0, (y.position >> 6 & 3)::int]) AS segment
                    FROM $S.retries y WHERE y.partition = p AND y.shard BETWEEN low AND high) r) h
        GROUP BY 1, 2, 3),
    rows AS MATERIALIZED (
        SELECT e.segment, e.slot, e.last, e.number - coalesce(g.number, 0) AS number
        FROM $S.entries e
        LEFT JOIN gone g ON g.segment = e.segment AND g.slot = e.slot
                        AND g.row_key = CASE e.segment WHEN 0 THEN e.last ELSE e.last >> 16 END
        WHERE e.partition = p AND e.slot BETWEEN low * 64 AND high * 64 + 63 AND e.number > coalesce(g.number, 0)),
    firsts AS MATERIALIZED (SELECT r.slot, sum(r.number)::bigint AS number, min(r.last) AS last FROM rows r GROUP BY 1)
    SELECT f.slot, f.number,
           (SELECT t.id FROM $S.waiting t
            WHERE t.partition = p AND t.slot = f.slot AND t.last = f.last
              AND NOT EXISTS (SELECT FROM $S.retries r
                              WHERE r.partition = p AND r.shard = t.shard AND r.position = t.position)
            ORDER BY t.position LIMIT 1)
    FROM firsts f
    UNION ALL
    SELECT r.shard * 64 + 33, count(*), NULL::uuid
    FROM $S.retries r WHERE r.partition = p AND r.shard BETWEEN low AND high GROUP BY 1;
END
$$;

CREATE FUNCTION $S.counts(p int, low int, high int, finished boolean,
                          OUT ready bigint, OUT due bigint, OUT retry bigint, OUT priorities bigint, OUT firsts uuid[],
                          OUT shard_prefix_len int, OUT done bigint, OUT dead bigint, OUT cancelled bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
DECLARE
    at_ms bigint := $S.now_ms();
BEGIN
    SELECT coalesce(sum(l.number) FILTER (WHERE l.slot & 63 < 32), 0)::bigint,
           coalesce(sum(l.number) FILTER (WHERE l.slot & 63 = 32), 0)::bigint,
           coalesce(sum(l.number) FILTER (WHERE l.slot & 63 = 33), 0)::bigint,
           coalesce(bit_or(1::bigint << (l.slot & 63)) FILTER (WHERE l.slot & 63 < 32), 0),
           array_agg(l.first) FILTER (WHERE l.slot & 63 < 32),
           (SELECT t.shard_prefix_len FROM $S.partitions t WHERE t.number = p)
    INTO ready, due, retry, priorities, firsts, shard_prefix_len FROM $S.live(p, low, high) l;
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
