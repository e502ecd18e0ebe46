/* sql_upkeep.c - clearing away, as functions of the schema. An advisory lock lets one process do it at a time.
 *
 *     upkeep_due       whether it is time for a round, of which one is enough for all processes
 *                      and, where the server's clock is behind what was remembered of it, that goes on by half
 *     upkeep           what goes row by row: segment 0, expired records, what is no longer kept
 *     upkeep_segments  what goes by TRUNCATE: segments 1 and 2,
 *     upkeep_tokens    and the parts of tokens; by itself, because nobody is to wait for the one while the other is tried
 *     upkeep_last      whoever worked and ends empties what is all settled, whether it is in use or not: else those who
 *                      begin would read through it
 *
 * A segment is closed when it has become large, or old, and the other one is empty. Once as many positions are settled
 * as there are entries, it is looked whether that is so of each number that was drawn, for positions may have been
 * noted twice, or not be there (G1); what shares a number is there whole or not at all. Then it is emptied. What is
 * left over after a while moves to segment 0, in pieces: a copy of the entry goes there, and the old one is marked as
 * settled. It is left where it is as long as it is much, unless the other segment has become so large meanwhile that it
 * must be emptied, too. `segments` says how many positions must be settled before it is worth looking again; NULL:
 * look.
 *
 * Entries are counted under a lock that keeps appends out (there are none but those that read `state` before it was
 * closed), and nobody else; only then comes the exclusive one, for which it waits 20 ms at most, ten times. Whoever
 * reads meanwhile waits behind it as long, so there is a pause between two tries. Of the segment in use, which all
 * appends go to, there is one try, and that comes last, for the first lock is held to the end. A transaction that took
 * the first lock moves nothing: that needs locks of shards, which come before those of tables.
 *
 * Where more is kept than may be, a round drops twenty times as much as usual: it has to read past all that stays.
 *
 * All of it needs a new snapshot for each statement, as begin_write demands: with one from before a lock was waited
 * for, what was put meanwhile would not be counted.
 *
 * Nothing of it is done by parallel workers, which the server would start anew for every round.
 *
 * left_rows says of rows of a segment how many of their tasks are not settled, by one join of two sets that carry no
 * bytes of tasks. It begins behind the last row that was seen (`segments` keeps it) and reads ten rows for each task
 * that may move: else, where much is left over, all of it would be read for every 2,000 tasks. The tables have no
 * statistics, so with sorting off the rows are found by index, and with all joins off but one by hashes no entry is
 * compared with every position. What moves at once is little, and of few shards, whose settles wait meanwhile: under
 * their locks only the rows that were chosen are looked at once more, by index (move_rows, which takes back what its
 * caller has set). */
#include "store/postgres/sql.h"

/* clang-format off */
const char kl__pg_sql_upkeep[] = KL_SQL(
CREATE FUNCTION $S.upkeep(batches int, rows_at_once int, rows_max bigint, OUT more boolean, OUT cut int)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
DECLARE
    at_ms bigint := $S.now_ms();
    taken int;
    dropped int;
BEGIN
    PERFORM $S.begin_write();
    more := false;
    IF NOT pg_try_advisory_xact_lock($L, 0) THEN
        RETURN;
    END IF;
    PERFORM setval($C || '.clock', at_ms) FROM $S.clock c WHERE c.last_value < at_ms - 1000;

    WITH t AS MATERIALIZED (
        DELETE FROM $S.settled_0 d
        WHERE d.ctid = ANY (ARRAY(
            SELECT c.row FROM (
                SELECT b.row, sum(b.number) OVER (ROWS UNBOUNDED PRECEDING) - b.number AS before
                FROM (SELECT s.ctid AS row, cardinality(s.positions) AS number FROM $S.settled_0 s LIMIT batches) b) c
            WHERE c.before < rows_at_once))
        RETURNING d.partition, d.shard, d.positions),
    x AS (
        DELETE FROM $S.entries_0 e USING (SELECT t.partition, t.shard, unnest(t.positions) AS position FROM t) g
        WHERE e.partition = g.partition AND e.slot = g.shard * 64 + (g.position & 63)::int AND e.last = g.position)
    SELECT count(*), sum(cardinality(t.positions)) INTO taken, dropped FROM t;
    more := taken = batches OR dropped >= rows_at_once;

    DELETE FROM $S.kept d
    WHERE d.ctid = ANY (ARRAY(SELECT k.ctid FROM $S.kept k WHERE k.expires_ms <= at_ms
                              ORDER BY k.expires_ms LIMIT rows_at_once));
    GET DIAGNOSTICS dropped = ROW_COUNT;
    more := more OR dropped = rows_at_once;
    DELETE FROM $S.records d
    WHERE d.name = ANY (ARRAY(SELECT r.name FROM $S.records r WHERE r.expires_ms > 0 AND r.expires_ms <= at_ms
                              ORDER BY r.expires_ms LIMIT rows_at_once FOR UPDATE SKIP LOCKED))
      AND d.expires_ms > 0 AND d.expires_ms <= at_ms;
    IF (SELECT c.reltuples FROM pg_class c WHERE c.oid = ($C || '.kept')::regclass) > rows_max THEN
        DELETE FROM $S.kept d
        WHERE d.ctid = ANY (ARRAY(SELECT k.ctid FROM $S.kept k
                                  ORDER BY k.finished_ms DESC OFFSET rows_max LIMIT 20 * rows_at_once));
        GET DIAGNOSTICS cut = ROW_COUNT;
        more := more OR cut = 20 * rows_at_once;
    END IF;
END
$$;

CREATE FUNCTION $S.upkeep_due(every_ms bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    at_ms bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
BEGIN
    PERFORM setval($C || '.clock', c.last_value + LEAST(at_ms - r.last_value, 60000) / 2) FROM $S.clock c, $S.rounds r
    WHERE c.last_value > at_ms AND at_ms - r.last_value >= every_ms AND pg_try_advisory_xact_lock($L, 4);
    PERFORM setval($C || '.rounds', at_ms) FROM $S.rounds r WHERE abs(at_ms - r.last_value) >= every_ms;
    RETURN FOUND;
END
$$;

CREATE FUNCTION $S.bytes_of(name text) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT pg_relation_size(($C || '.' || name)::regclass)
$$;

CREATE FUNCTION $S.empty_tables(names text[], tries int) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
DECLARE
    list text := (SELECT string_agg(format('%I.%I', $C, u.name), ', ') FROM unnest(names) AS u(name));
BEGIN
    FOR i IN 1 .. tries LOOP
        PERFORM pg_sleep(0.05) WHERE i > 1;
        BEGIN
            EXECUTE 'LOCK TABLE ' || list || ' IN ACCESS EXCLUSIVE MODE';
            EXECUTE 'TRUNCATE ' || list;
            RETURN true;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            NULL;
        END;
    END LOOP;
    RETURN false;
END
$$;

CREATE FUNCTION $S.left_rows(k int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN format('SELECT e.partition, e.slot, e.last, e.number - coalesce(g.number, 0) AS missing'
        || ' FROM (SELECT r.partition, r.slot, r.last, r.number FROM $S.entries_%s r'
        || ' WHERE (r.partition, r.slot, r.last) > ($1, $2, $3) ORDER BY r.partition, r.slot, r.last LIMIT $4) e'
        || ' LEFT JOIN (SELECT h.partition, h.slot, h.position >> 16 AS row_key, count(*) AS number'
        || ' FROM (SELECT DISTINCT t.partition, t.shard * 64 + (t.position & 63)::int AS slot, t.position'
        || ' FROM (SELECT s.partition, s.shard, unnest(s.positions) AS position FROM $S.settled_%s s) t) h'
        || ' GROUP BY 1, 2, 3) g'
        || ' ON g.partition = e.partition AND g.slot = e.slot AND g.row_key = e.last >> 16', k, k);
END
$$;

CREATE FUNCTION $S.reclaim(k int, tries int) RETURNS boolean
LANGUAGE plpgsql SET jit = off SET enable_nestloop = off SET max_parallel_workers_per_gather = 0
SET lock_timeout = '20ms' AS $$
DECLARE
    there bigint;
    done bigint;
    missing bigint;
BEGIN
    EXECUTE format('LOCK TABLE $S.entries_%s IN SHARE MODE', k);
    EXECUTE format('SELECT (SELECT coalesce(sum(number), 0) FROM $S.entries_%s),'
                   || ' (SELECT coalesce(sum(cardinality(positions)), 0) FROM $S.settled_%s)', k, k) INTO there, done;
    missing := there - done;
    IF done >= there THEN
        EXECUTE format('SELECT coalesce(sum(e.number - coalesce(g.number, 0)), 0)'
            || ' FROM (SELECT last >> 16 AS drawn, sum(number) AS number FROM $S.entries_%s GROUP BY 1) e'
            || ' LEFT JOIN (SELECT d.position >> 16 AS drawn, count(*) AS number'
            || ' FROM (SELECT DISTINCT unnest(positions) AS position FROM $S.settled_%s) d GROUP BY 1) g'
            || ' ON g.drawn = e.drawn WHERE e.number > coalesce(g.number, 0)', k, k) INTO missing;
    END IF;
    IF missing > 0 OR NOT $S.empty_tables(ARRAY['entries_' || k, 'settled_' || k], tries) THEN
        UPDATE $S.segments s SET entries = done + missing WHERE s.number = k AND s.entries IS DISTINCT FROM done + missing;
        RETURN false;
    END IF;
    UPDATE $S.segments s SET entries = NULL WHERE s.number = k AND s.entries IS NOT NULL;
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END
$$;

CREATE FUNCTION $S.move_rows(k int, ps int[], slots int[], lasts bigint[]) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = on SET enable_hashjoin = off SET enable_sort = on
SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
DECLARE
    moved bigint;
BEGIN
    EXECUTE format('WITH c AS MATERIALIZED (SELECT * FROM unnest($1, $2, $3) AS u(p, slot, last)),'
        || ' b AS MATERIALIZED (SELECT c.p, c.slot >> 6 AS shard, min(c.last) & -65536 AS low, max(c.last) AS high FROM c'
        || ' GROUP BY 1, 2),'
        || ' gone AS MATERIALIZED (SELECT t.partition, t.shard, x.position FROM b JOIN $S.settled_%s t'
        || ' ON t.partition = b.p AND t.shard = b.shard AND t.last >= b.low AND t.first <= b.high'
        || ' CROSS JOIN LATERAL unnest(t.positions) AS x(position) WHERE x.position BETWEEN b.low AND b.high),'
        || ' m AS ('
        || 'INSERT INTO $S.entries_0 (partition, slot, last, segment, number, due_ms, priority, bytes, jobs, groups,'
        || ' tasks)'
        || ' SELECT e.partition, e.slot, e.position, 0, 1, e.due_ms, e.priority,'
        || ' CASE WHEN z.bytes > 3900 THEN z.bytes END, CASE WHEN e.job IS NOT NULL THEN ARRAY[e.job] END,'
        || ' CASE WHEN e.grp IS NOT NULL THEN ARRAY[e.grp] END,'
        || ' $S.pack((e.position >> 8 & 255)::int, e.id, e.key, e.kind, e.headers, e.payload)'
        || ' FROM c JOIN $S.tasks e ON e.segment = %s AND e.partition = c.p AND e.slot = c.slot AND e.last = c.last'
        || ' CROSS JOIN LATERAL (SELECT coalesce(octet_length(e.key), 0) + coalesce(octet_length(e.kind), 0)'
        || ' + coalesce(octet_length(e.headers), 0) + coalesce(octet_length(e.payload), 0) AS bytes) z'
        || ' WHERE (e.partition, e.shard, e.position) NOT IN (SELECT g.partition, g.shard, g.position FROM gone g)'
        || ' RETURNING partition, slot, last AS position),'
        || ' s AS (INSERT INTO $S.settled_%s (partition, shard, first, last, segment, positions)'
        || ' SELECT m.partition, m.slot >> 6, min(m.position), max(m.position), %s, array_agg(m.position)'
        || ' FROM m GROUP BY 1, 2)'
        || ' SELECT count(*) FROM m', k, k, k, k) USING ps, slots, lasts INTO moved;
    RETURN moved;
END
$$;

CREATE FUNCTION $S.move_left_over(k int, number int) RETURNS bigint
LANGUAGE plpgsql SET jit = off SET enable_nestloop = off SET enable_mergejoin = off SET enable_sort = off
SET max_parallel_workers_per_gather = 0 AS $$
DECLARE
    seg record;
    seen record;
    most int := 10 * number;
BEGIN
    SELECT * INTO seg FROM $S.segments s WHERE s.number = k;
    EXECUTE format('SELECT array_agg(x.partition) FILTER (WHERE x.missing > 0) AS ps,'
        || ' array_agg(x.slot) FILTER (WHERE x.missing > 0) AS slots,'
        || ' array_agg(x.last) FILTER (WHERE x.missing > 0) AS lasts,'
        || ' count(*) < $4 AND coalesce(sum(x.missing), 0) < %s AS is_end,'
        || ' (array_agg(x.partition ORDER BY x.n DESC))[1] AS last_partition,'
        || ' (array_agg(x.slot ORDER BY x.n DESC))[1] AS last_slot, (array_agg(x.last ORDER BY x.n DESC))[1] AS last'
        || ' FROM (SELECT r.*, row_number() OVER w AS n, sum(r.missing) OVER w - r.missing AS before FROM (%s) r'
        || ' WINDOW w AS (ORDER BY r.partition, r.slot, r.last)) x WHERE x.before < %s',
        number, $S.left_rows(k), number) USING seg.seen_partition, seg.seen_slot, seg.seen_last, most INTO seen;
    UPDATE $S.segments s SET seen_partition = CASE WHEN seen.is_end THEN 0 ELSE seen.last_partition END,
                             seen_slot = CASE WHEN seen.is_end THEN 0 ELSE seen.last_slot END,
                             seen_last = CASE WHEN seen.is_end THEN 0 ELSE seen.last END
    WHERE s.number = k;
    IF seen.ps IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM $S.lock_shards(1024, seen.ps, ARRAY(SELECT u.slot >> 6 FROM unnest(seen.slots) WITH ORDINALITY AS u(slot, n)
                                                ORDER BY u.n));
    RETURN $S.move_rows(k, seen.ps, seen.slots, seen.lasts);
END
$$;

CREATE FUNCTION $S.upkeep_closed(k int, left_over_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    at_ms bigint := $S.now_ms();
    seg record;
    done bigint;
    spent bigint;
BEGIN
    SELECT * INTO seg FROM $S.segments s WHERE s.number = k;
    IF at_ms < seg.next_ms OR ($S.bytes_of('entries_' || k) = 0 AND $S.bytes_of('settled_' || k) = 0) THEN
        RETURN;
    END IF;
    EXECUTE format('SELECT coalesce(sum(cardinality(positions)), 0) FROM $S.settled_%s', k) INTO done;
    IF seg.entries IS NULL AND at_ms - seg.closed_ms < LEAST(left_over_ms, 2000) THEN
        RETURN;
    END IF;
    IF seg.entries IS NULL OR done >= seg.entries THEN
        IF $S.reclaim(k, 10) THEN
            RETURN;
        END IF;
    ELSIF at_ms - seg.closed_ms >= left_over_ms
       AND (seg.entries - done <= 20000 OR $S.bytes_of('entries_' || (3 - k)) > 268435456) THEN
        PERFORM $S.move_left_over(k, 2000);
    END IF;
    spent := $S.now_ms() - at_ms;
    UPDATE $S.segments SET next_ms = at_ms + LEAST(5 * spent, 60000) WHERE number = k AND spent > 20;
END
$$;

CREATE FUNCTION $S.upkeep_segments(old_ms bigint, left_over_ms bigint, large bigint)
RETURNS void LANGUAGE plpgsql SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
DECLARE
    at_ms bigint := $S.now_ms();
    now_used record;
    next_one int;
BEGIN
    PERFORM $S.begin_write();
    IF NOT pg_try_advisory_xact_lock($L, 0) THEN
        RETURN;
    END IF;
    SELECT * INTO now_used FROM $S.state;
    FOR k IN 1 .. 2 LOOP
        CONTINUE WHEN k = now_used.segment;
        PERFORM $S.upkeep_closed(k, left_over_ms);
    END LOOP;

    IF $S.bytes_of('entries_' || now_used.segment) >= large
       OR (at_ms - now_used.segment_ms >= old_ms AND $S.bytes_of('settled_' || now_used.segment) > 0) THEN
        SELECT min(s.number) INTO next_one FROM $S.segments s
        WHERE s.number <> now_used.segment AND $S.bytes_of('entries_' || s.number) = 0
          AND $S.bytes_of('settled_' || s.number) = 0;
        IF next_one IS NOT NULL THEN
            UPDATE $S.segments SET closed_ms = at_ms, next_ms = 0, entries = NULL, seen_partition = 0, seen_slot = 0,
                                   seen_last = 0 WHERE number = now_used.segment;
            PERFORM setval($C || '.segment_in_use', at_ms * 4 + next_one);
        END IF;
    END IF;
END
$$;

CREATE FUNCTION $S.upkeep_last(least_bytes bigint) RETURNS int
LANGUAGE plpgsql SET jit = off SET max_parallel_workers_per_gather = 0 AS $$
DECLARE
    emptied int := 0;
    used int;
    k int;
    is_done boolean;
BEGIN
    PERFORM $S.begin_write();
    IF NOT pg_try_advisory_xact_lock($L, 0) THEN
        RETURN 0;
    END IF;
    SELECT s.segment INTO used FROM $S.state s;
    FOREACH k IN ARRAY ARRAY[3 - used, used] LOOP
        CONTINUE WHEN $S.bytes_of('entries_' || k) < least_bytes;
        EXECUTE format('SELECT (SELECT coalesce(sum(number), 0) FROM $S.entries_%s)'
                       || ' <= (SELECT coalesce(sum(cardinality(positions)), 0) FROM $S.settled_%s)', k, k) INTO is_done;
        IF is_done AND $S.reclaim(k, CASE WHEN k = used THEN 1 ELSE 10 END) THEN
            emptied := emptied + 1;
        END IF;
    END LOOP;
    RETURN emptied;
END
$$;

CREATE FUNCTION $S.upkeep_tokens(token_ms bigint) RETURNS void LANGUAGE plpgsql SET jit = off AS $$
DECLARE
    at_ms bigint := $S.now_ms();
    now_used record;
    next_one int;
BEGIN
    PERFORM $S.begin_write();
    IF NOT pg_try_advisory_xact_lock($L, 0) THEN
        RETURN;
    END IF;
    SELECT * INTO now_used FROM $S.state;
    IF $S.bytes_of('tokens_' || now_used.part) >= 6000000
       OR (at_ms - now_used.part_ms >= token_ms AND $S.bytes_of('tokens_' || now_used.part) > 0) THEN
        next_one := (now_used.part + 1) % 3;
        IF $S.bytes_of('tokens_' || next_one) = 0 OR $S.empty_tables(ARRAY['tokens_' || next_one], 10) THEN
            PERFORM setval($C || '.part_in_use', at_ms * 4 + next_one);
        END IF;
    END IF;
END
$$;
);
