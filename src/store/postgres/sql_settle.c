/* sql_settle.c - how tasks end, as functions of the schema: settle, fence, and what is kept.
 *
 * An advisory lock per shard, which ends with the transaction, stands around each settle and each fence of that shard
 * (sql_tasks.c). A statement that follows it sees everything that was committed by whoever held it before, so the fence
 * that settle compares with is the one that counts.
 *
 * settle_sure is for the common case: whoever settles has the tasks from a scan (seen.c), so they are there and were
 * not settled before. Then it is enough to note their positions, and to copy those that are kept (k_*). Where some of a
 * shard's tasks are in the retry line, or were moved to segment 0, it returns NULL and has done nothing; then `settle`
 * looks at each. In settle_more `segs` has an element for each task: where it was found, NULL where it was not.
 *
 * Arrays of a call are taken apart side by side and never joined with one another: the server takes each for a few
 * rows, and would compare every one with every other.
 *
 * An id may wait twice, in two appends with tokens of their own. Where both are kept by one call, the later one stays.
 *
 * Outcomes: 0 done, 1 retry, 2 dead, 3 cancelled. States: 2 done, 3 dead, 4 cancelled. A task that stands in a call
 * more than once is settled once in each round. */
#include "store/postgres/sql.h"

/* clang-format off */
const char kl__pg_sql_settle[] = KL_SQL(
CREATE FUNCTION $S.settle_sure(bp int[], bs int[], be bigint[], ats int[], segs smallint[], firsts int[], counts int[],
                               poss bigint[], k_ats int[], k_poss bigint[], k_states smallint[], k_atts int[],
                               k_keeps bigint[], k_errs bytea[], k_ress bytea[])
RETURNS bigint[] LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    at_ms bigint;
    fenced bigint[];
    unsure boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('synchronous_commit') = 'off' THEN
        PERFORM $S.begin_write();
    END IF;
    PERFORM pg_advisory_xact_lock($L, x.number)
    FROM (SELECT DISTINCT 1024 + (hashint8((u.p::bigint << 16) | u.s) & 1023) AS number
          FROM unnest(bp, bs) AS u(p, s) ORDER BY 1) x;
    SELECT array_agg(coalesce(f.epoch, 0) ORDER BY b.n), bool_or(
               EXISTS (SELECT FROM $S.retries y WHERE y.partition = b.p AND y.shard = b.s)
            OR EXISTS (SELECT FROM $S.entries_0 e
                       WHERE e.partition = b.p AND e.slot >= b.s * 64 AND e.slot < b.s * 64 + 32))
    INTO fenced, unsure
    FROM unnest(bp, bs) WITH ORDINALITY AS b(p, s, n)
    LEFT JOIN $S.fences f ON f.partition = b.p AND f.shard = b.s;
    IF unsure THEN
        RETURN NULL;
    END IF;
    INSERT INTO $S.settled (partition, shard, first, last, segment, positions)
    SELECT bp[u.at], bs[u.at], poss[u.first], poss[u.first + u.number - 1], u.segment,
           poss[u.first : u.first + u.number - 1]
    FROM unnest(ats, segs, firsts, counts) AS u(at, segment, first, number)
    WHERE be[u.at] >= fenced[u.at];
    IF cardinality(k_ats) > 0 THEN
        at_ms := $S.now_ms();
        INSERT INTO $S.kept AS k (partition, shard, id, state, attempts, finished_ms, expires_ms, job, due_ms, grp,
                                  priority, key, kind, headers, payload, result, errors)
        SELECT DISTINCT ON (e.partition, e.slot >> 6, e.id)
               e.partition, e.slot >> 6, e.id, u.state, u.att, at_ms, at_ms + u.keep, e.job, e.due_ms, e.grp,
               e.priority, e.key, e.kind, e.headers, e.payload, u.res, CASE WHEN u.err IS NOT NULL THEN ARRAY[u.err] END
        FROM unnest(k_ats, k_poss, k_states, k_atts, k_keeps, k_errs, k_ress) AS u(at, pos, state, att, keep, err, res)
        JOIN $S.tasks e ON e.segment = (u.pos >> 6 & 3)::smallint AND e.partition = bp[u.at]
                       AND e.slot = bs[u.at] * 64 + (u.pos & 63)::int AND e.last BETWEEN u.pos AND u.pos | 65535
                       AND e.position = u.pos
        WHERE be[u.at] >= fenced[u.at]
        ORDER BY e.partition, e.slot >> 6, e.id, e.position DESC
        ON CONFLICT (partition, shard, id) DO UPDATE SET
            (state, attempts, finished_ms, expires_ms, job, due_ms, grp, priority, key, kind, headers, payload, result,
             errors)
            = (excluded.state, excluded.attempts, excluded.finished_ms, excluded.expires_ms, excluded.job,
               excluded.due_ms, excluded.grp, excluded.priority, excluded.key, excluded.kind, excluded.headers,
               excluded.payload, excluded.result, excluded.errors);
    END IF;
    RETURN fenced;
END
$$;

CREATE FUNCTION $S.settle(bp int[], bs int[], be bigint[], ats int[], rounds int[], ids uuid[], poss bigint[],
                          outcomes int[], atts int[], dues bigint[], keeps bigint[], errs bytea[], ress bytea[],
                          last_round int)
RETURNS bigint[] LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    at_ms bigint;
    fenced bigint[];
    segs smallint[];
BEGIN
    PERFORM $S.begin_write();
    PERFORM $S.lock_shards(1024, bp, bs);
    fenced := ARRAY(
        SELECT coalesce(f.epoch, 0)
        FROM unnest(bp, bs) WITH ORDINALITY AS b(p, s, n)
        LEFT JOIN $S.fences f ON f.partition = b.p AND f.shard = b.s ORDER BY b.n);
    at_ms := $S.now_ms();

    FOR r IN 0 .. last_round LOOP
        WITH t AS MATERIALIZED (
            SELECT u.n, bp[u.at] AS p, bs[u.at] AS s, u.pos, u.id, u.round = r AND be[u.at] >= fenced[u.at] AS counts
            FROM unnest(ats, poss, ids, rounds) WITH ORDINALITY AS u(at, pos, id, round, n)),
        low AS MATERIALIZED (SELECT t.p, t.s, min(t.pos) AS pos FROM t WHERE t.counts GROUP BY t.p, t.s),
        gone AS MATERIALIZED (
            SELECT d.segment, d.partition, d.shard, x.position
            FROM low JOIN $S.settled d ON d.partition = low.p AND d.shard = low.s AND d.last >= low.pos
            CROSS JOIN LATERAL unnest(d.positions) AS x(position))
        SELECT array_agg(e.segment ORDER BY t.n) INTO segs
        FROM t LEFT JOIN $S.tasks e
          ON t.counts AND e.partition = t.p AND e.slot = t.s * 64 + (t.pos & 63)::int
         AND e.last BETWEEN t.pos AND t.pos | 65535 AND e.position = t.pos AND e.id = t.id
         AND (e.segment, t.p, t.s, t.pos) NOT IN (SELECT g.segment, g.partition, g.shard, g.position FROM gone g);
        PERFORM $S.settle_more(bp, bs, ats, poss, outcomes, atts, dues, keeps, errs, ress, segs, at_ms);
        INSERT INTO $S.settled (partition, shard, first, last, segment, positions)
            SELECT bp[u.at], bs[u.at], min(u.pos), max(u.pos), u.segment, array_agg(u.pos ORDER BY u.pos)
            FROM unnest(ats, poss, outcomes, segs) AS u(at, pos, outcome, segment)
            WHERE u.segment IS NOT NULL AND u.outcome <> 1 GROUP BY 1, 2, u.segment;
    END LOOP;
    RETURN fenced;
END
$$;

CREATE FUNCTION $S.settle_more(bp int[], bs int[], ats int[], poss bigint[], outcomes int[], atts int[], dues bigint[],
                               keeps bigint[], errs bytea[], ress bytea[], segs smallint[], at_ms bigint)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    INSERT INTO $S.kept AS k (partition, shard, id, state, attempts, finished_ms, expires_ms, job, due_ms, grp,
                              priority, key, kind, headers, payload, result, errors)
    SELECT DISTINCT ON (e.partition, e.slot >> 6, e.id)
           e.partition, e.slot >> 6, e.id, CASE u.outcome WHEN 0 THEN 2 WHEN 2 THEN 3 ELSE 4 END, u.att, at_ms,
           at_ms + u.keep, e.job, e.due_ms, e.grp, e.priority, e.key, e.kind, e.headers, e.payload, u.res,
           CASE WHEN u.err IS NULL THEN NULL ELSE ARRAY[u.err] END ||
           (SELECT array_agg(x.error ORDER BY x.number DESC) FROM $S.errors x
            WHERE x.partition = e.partition AND x.shard = e.slot >> 6 AND x.position = e.position
              AND x.expires_ms > at_ms)
    FROM unnest(ats, poss, outcomes, atts, keeps, errs, ress, segs) AS u(at, pos, outcome, att, keep, err, res, segment)
    JOIN $S.tasks e ON e.partition = bp[u.at] AND e.slot = bs[u.at] * 64 + (u.pos & 63)::int AND e.segment = u.segment
                   AND e.last BETWEEN u.pos AND u.pos | 65535 AND e.position = u.pos
    WHERE u.outcome <> 1 AND u.keep > 0
    ORDER BY e.partition, e.slot >> 6, e.id, e.position DESC
    ON CONFLICT (partition, shard, id) DO UPDATE SET
        (state, attempts, finished_ms, expires_ms, job, due_ms, grp, priority, key, kind, headers, payload, result,
         errors)
        = (excluded.state, excluded.attempts, excluded.finished_ms, excluded.expires_ms, excluded.job, excluded.due_ms,
           excluded.grp, excluded.priority, excluded.key, excluded.kind, excluded.headers, excluded.payload,
           excluded.result, excluded.errors);

    DELETE FROM $S.errors x
    USING unnest(ats, poss, outcomes, atts, errs, segs) AS u(at, pos, outcome, att, err, segment)
    WHERE u.segment IS NOT NULL AND x.partition = bp[u.at] AND x.shard = bs[u.at] AND x.position = u.pos
      AND (u.outcome <> 1 OR x.expires_ms <= at_ms OR (u.err IS NOT NULL AND x.attempts = u.att));
    INSERT INTO $S.errors (partition, shard, position, attempts, expires_ms, error)
    SELECT bp[u.at], bs[u.at], u.pos, u.att, at_ms + u.keep, u.err
    FROM unnest(ats, poss, outcomes, atts, keeps, errs, segs) AS u(at, pos, outcome, att, keep, err, segment)
    WHERE u.segment IS NOT NULL AND u.outcome = 1 AND u.err IS NOT NULL;

    DELETE FROM $S.retries y
    USING unnest(ats, poss, outcomes, segs) AS u(at, pos, outcome, segment)
    WHERE u.segment IS NOT NULL AND u.outcome <> 1
      AND y.partition = bp[u.at] AND y.shard = bs[u.at] AND y.position = u.pos;
    INSERT INTO $S.retries AS y (partition, shard, position, attempts, not_before_ms)
    SELECT bp[u.at], bs[u.at], u.pos, u.att, u.due
    FROM unnest(ats, poss, outcomes, atts, dues, segs) AS u(at, pos, outcome, att, due, segment)
    WHERE u.segment IS NOT NULL AND u.outcome = 1
    ON CONFLICT (partition, shard, position) DO UPDATE
        SET attempts = excluded.attempts, not_before_ms = excluded.not_before_ms;
END
$$;

CREATE FUNCTION $S.fence(ps int[], ss int[], es bigint[], seals boolean[])
RETURNS bigint[] LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    before bigint;
    fenced bigint[] := ARRAY[]::bigint[];
BEGIN
    PERFORM $S.begin_write();
    PERFORM $S.lock_shards(1024, ps, ss);
    IF true = ANY (seals) THEN
        PERFORM $S.lock_shards(2048, ps, ss);
    END IF;
    FOR i IN 1 .. array_length(ps, 1) LOOP
        SELECT f.epoch INTO before FROM $S.fences f WHERE f.partition = ps[i] AND f.shard = ss[i];
        before := coalesce(before, 0);
        fenced := fenced || before;
        IF es[i] > before THEN
            INSERT INTO $S.fences AS f (partition, shard, epoch) VALUES (ps[i], ss[i], es[i])
            ON CONFLICT (partition, shard) DO UPDATE SET epoch = excluded.epoch;
        END IF;
        IF seals[i] THEN
            INSERT INTO $S.sealed (partition, shard) VALUES (ps[i], ss[i]) ON CONFLICT DO NOTHING;
        END IF;
    END LOOP;
    RETURN fenced;
END
$$;

CREATE FUNCTION $S.results(p int, s int, j uuid, behind uuid, lim int)
RETURNS TABLE (n bigint, state int, partition int, shard int, id uuid, pos bigint, attempts int,
               not_before_ms bigint, finished_ms bigint, job uuid, due_ms bigint, grp smallint, priority int,
               key bytea, kind bytea, headers bytea, payload bytea, error bytea, result bytea)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0
AS $$ #variable_conflict use_column
DECLARE
    at_ms bigint := $S.now_ms();
BEGIN
    RETURN QUERY
    SELECT 0::bigint, k.state::int, k.partition, k.shard, k.id, 0::bigint, k.attempts, 0::bigint, k.finished_ms, k.job,
           k.due_ms, k.grp, coalesce(k.priority, 0)::int, k.key, k.kind, k.headers, k.payload, k.errors[1], k.result
    FROM $S.kept k
    WHERE k.partition = p AND k.job = j AND k.shard = s AND (behind IS NULL OR k.id > behind) AND k.expires_ms > at_ms
    ORDER BY k.id LIMIT lim;
END
$$;

CREATE FUNCTION $S.find(p int, st int, k_key bytea, k_kind bytea, k_job uuid, from_ms bigint, until_ms bigint,
                        after_ms bigint, after_p int, after_s int, after_id uuid, worded boolean, lim int)
RETURNS TABLE (n bigint, state int, partition int, shard int, id uuid, pos bigint, attempts int,
               not_before_ms bigint, finished_ms bigint, job uuid, due_ms bigint, grp smallint, priority int,
               key bytea, kind bytea, headers bytea, payload bytea, error bytea, result bytea, errors bytea[])
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0
AS $$ #variable_conflict use_column
DECLARE
    at_ms bigint := $S.now_ms();
BEGIN
    RETURN QUERY
    SELECT 0::bigint, k.state::int, k.partition, k.shard, k.id, 0::bigint, k.attempts, 0::bigint, k.finished_ms, k.job,
           k.due_ms, k.grp, coalesce(k.priority, 0)::int, k.key, k.kind, k.headers, k.payload, k.errors[1], k.result,
           k.errors
    FROM $S.kept k
    WHERE (p IS NULL OR k.partition = p) AND (st IS NULL OR k.state = st) AND (k_key IS NULL OR k.key = k_key)
      AND (k_kind IS NULL OR k.kind = k_kind) AND (k_job IS NULL OR k.job = k_job)
      AND k.finished_ms >= from_ms AND k.finished_ms < until_ms AND k.expires_ms > at_ms
      AND (NOT worded OR k.errors IS NOT NULL)
      AND (after_id IS NULL OR (k.finished_ms, k.partition, k.shard, k.id) < (after_ms, after_p, after_s, after_id))
    ORDER BY k.finished_ms DESC, k.partition DESC, k.shard DESC, k.id DESC LIMIT lim;
END
$$;

CREATE FUNCTION $S.forget(p int, s int, ids uuid[])
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM $S.begin_write();
    DELETE FROM $S.kept k USING unnest(ids) AS i(id) WHERE k.partition = p AND k.shard = s AND k.id = i.id;
END
$$;
);
