/* sql_tables.c - the tables of the schema, and the small functions that the others share.
 *
 *     positions   a sequence: each append draws a number for up to 256 of its entries. It does so under the locks of its
 *                 shards, which it keeps until it is committed: so positions become visible in their order (S2).
 *     started     a row that names this table's own file and when the server began: so whoever finds it knows that the
 *                 server has not crashed, nor a replica taken its place (it is not logged, so it is gone then), and that
 *                 the database was not restored, nor the server begun from a copy of its files. Otherwise the sequence may
 *                 have been further than it knows, and somebody may have seen that: so whoever does not find the row puts
 *                 it far ahead, and commits that before anybody draws (skip_positions).
 *     sealed      a row per sealed shard.
 *     entries     tasks, never updated. A row has those that one append put into one line of a shard, up to some 4 KB, as
 *                 bytes (row.h); `number` says how many. `jobs` and `groups` are arrays, NULL where no task has one.
 *                 slot = shard * 64 + line, where line is 0 to 31 for priorities -16 to 15, and 32 for the due line.
 *                 position = number * 65536 + at * 256 + segment * 64 + line: a number that was drawn, the task's place
 *                 among the (up to 256) that share it, and the segment that it was put into. So a position leads to its
 *                 row. `last` is the position of the row's last task.
 *                 `bytes` is the size of a task that fills a row alone; it is not shown by scans with its payload.
 *     settled     a row per settled batch, shard and segment: the positions that are finished.
 *     tokens      a row per append that named itself.
 *     retries     a row per task of the retry line; its entry stays where it is.
 *     errors      what attempts of waiting tasks left to be kept.
 *     kept        finished tasks.
 *     clock       the latest time that was remembered, and `rounds`, when upkeep was last begun.
 *     state       which segment takes new entries, and which part new tokens, and since when: two sequences that have both
 *                 in a number. segments: what is known of the others.
 *
 * What is read with every append and changes often is a sequence, because those leave no dead rows behind, which every
 * reader would have to pass for as long as somebody holds a snapshot. That they keep what a transaction has set when it
 * is rolled back does no harm (G3).
 *
 * entries and settled lie in segments, each a table of either. Segments 1 and 2 take turns, and are emptied by TRUNCATE
 * when everything in them is settled. Segment 0 stays, and its rows are deleted one by one: there stand delayed tasks,
 * and those that were left over in a segment that is to be emptied.
 *
 * Whoever publishes all tables of the database may not delete from one whose rows cannot be told apart: so those of
 * segment 0 have a replica identity, and every other table that is deleted from or updated has a primary key.
 *
 * G1  A row of settled names positions of its own segment only. Some of them may not be there: a scan showed the task,
 *     a crash took its append back, and who had it settles it; or the segment was emptied meanwhile. Such a position is
 *     never drawn again, and whoever counts must not take it for one that is.
 * G2  A task waits while an entry of it is there whose position stands in no row of settled of the entry's segment.
 *     There is one such entry at most: when a task moves to segment 0, the old one is marked as settled.
 * G3  Any segment may get entries at any time, because an append may have read `state` long ago: nothing rests on it.
 * G4  In segments 1 and 2 a line has one row at most for each number; in segment 0 each task has a row of its own. So
 *     `row_key` (sql_tasks.c) tells from a position which row it stands in.
 *
 * The view `tasks` shows a row for each task of `entries`, and `waiting` those that wait: for people, and for what need
 * not be quick. Of both, `last` is what the index knows.
 *
 * A task stands in the retry line exactly while it waits and has a row in `retries`. NULL stands for empty and for 0
 * where most rows have that. Literals have no backslash, for what one means is a setting of the session, and are never
 * empty, for C reads them first. */
#include "store/postgres/sql.h"

/* clang-format off */
const char kl__pg_sql_tables[] = KL_SQL(
CREATE SEQUENCE $S.clock MINVALUE 0;
CREATE SEQUENCE $S.rounds MINVALUE 0;

CREATE TABLE $S.partitions (
    number int PRIMARY KEY,
    name bytea NOT NULL UNIQUE,
    shard_prefix_len int NOT NULL
);

CREATE SEQUENCE $S.positions;
CREATE UNLOGGED TABLE $S.started (file text NOT NULL, since timestamptz NOT NULL);

CREATE TABLE $S.sealed (
    partition int NOT NULL,
    shard int NOT NULL,
    PRIMARY KEY (partition, shard)
);

CREATE SEQUENCE $S.segment_in_use MINVALUE 0 START 1;
CREATE SEQUENCE $S.part_in_use MINVALUE 0;
CREATE VIEW $S.state AS
SELECT (s.last_value & 3)::smallint AS segment, s.last_value >> 2 AS segment_ms,
       (p.last_value & 3)::smallint AS part, p.last_value >> 2 AS part_ms
FROM $S.segment_in_use s, $S.part_in_use p;

CREATE TABLE $S.segments (
    number smallint PRIMARY KEY,
    closed_ms bigint NOT NULL,
    next_ms bigint NOT NULL,
    entries bigint,
    seen_partition int NOT NULL DEFAULT 0,
    seen_slot int NOT NULL DEFAULT 0,
    seen_last bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
INSERT INTO $S.segments SELECT n, 0, 0, 0 FROM generate_series(1, 2) AS n;

CREATE TABLE $S.fences (
    partition int NOT NULL,
    shard int NOT NULL,
    epoch bigint NOT NULL,
    PRIMARY KEY (partition, shard)
) WITH (fillfactor = 50);

CREATE TABLE $S.tokens (token uuid NOT NULL, part smallint NOT NULL) PARTITION BY LIST (part);
CREATE TABLE $S.tokens_0 PARTITION OF $S.tokens FOR VALUES IN (0) WITH (autovacuum_enabled = off);
CREATE TABLE $S.tokens_1 PARTITION OF $S.tokens FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE $S.tokens_2 PARTITION OF $S.tokens FOR VALUES IN (2) WITH (autovacuum_enabled = off);
CREATE UNIQUE INDEX tokens_0_token ON $S.tokens_0 (token);
CREATE UNIQUE INDEX tokens_1_token ON $S.tokens_1 (token);
CREATE UNIQUE INDEX tokens_2_token ON $S.tokens_2 (token);

CREATE TABLE $S.entries (
    last bigint NOT NULL,
    due_ms bigint,
    partition int NOT NULL,
    slot int NOT NULL,
    bytes int,
    segment smallint NOT NULL,
    number smallint NOT NULL,
    priority smallint,
    jobs uuid[],
    groups smallint[],
    tasks bytea NOT NULL
) PARTITION BY LIST (segment);
CREATE TABLE $S.entries_0 PARTITION OF $S.entries FOR VALUES IN (0)
    WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, toast_tuple_target = 8160);
CREATE TABLE $S.entries_1 PARTITION OF $S.entries FOR VALUES IN (1)
    WITH (autovacuum_enabled = off, toast_tuple_target = 8160);
CREATE TABLE $S.entries_2 PARTITION OF $S.entries FOR VALUES IN (2)
    WITH (autovacuum_enabled = off, toast_tuple_target = 8160);
ALTER TABLE $S.entries_0 ALTER tasks SET STORAGE external;
ALTER TABLE $S.entries_1 ALTER tasks SET STORAGE external;
ALTER TABLE $S.entries_2 ALTER tasks SET STORAGE external;
CREATE UNIQUE INDEX entries_0_place ON $S.entries_0 (partition, slot, last);
CREATE UNIQUE INDEX entries_1_place ON $S.entries_1 (partition, slot, last);
CREATE UNIQUE INDEX entries_2_place ON $S.entries_2 (partition, slot, last);
ALTER TABLE $S.entries_0 REPLICA IDENTITY USING INDEX entries_0_place;
CREATE INDEX entries_due ON $S.entries_0 (partition, slot, due_ms, last) WHERE due_ms IS NOT NULL;

CREATE VIEW $S.tasks AS
SELECT e.segment, e.partition, e.slot, e.slot >> 6 AS shard, e.last,
       (e.last & -65281) + (get_byte(h.head, 0) << 8) AS position, encode(substr(h.head, 10), 'hex')::uuid AS id,
       e.jobs[u.n] AS job, e.due_ms, e.groups[u.n] AS grp,
       coalesce(e.priority, CASE WHEN e.slot & 63 < 32 THEN (e.slot & 63) - 16 ELSE 0 END)::int AS priority,
       CASE WHEN l.key > 0 THEN substr(e.tasks, l.begin, l.key) END AS key,
       CASE WHEN l.kind > 0 THEN substr(e.tasks, l.begin + l.key, l.kind) END AS kind,
       CASE WHEN l.headers > 0 THEN substr(e.tasks, l.begin + l.key + l.kind, l.headers) END AS headers,
       CASE WHEN l.payload > 0 THEN substr(e.tasks, l.begin + l.all_bytes - l.payload, l.payload) END AS payload
FROM $S.entries e
CROSS JOIN LATERAL generate_series(1, e.number) AS u(n)
CROSS JOIN LATERAL (SELECT substr(e.tasks, 25 * u.n - 24, 25) AS head) h
CROSS JOIN LATERAL (
    SELECT (get_byte(h.head, 1) << 16) + (get_byte(h.head, 2) << 8) + get_byte(h.head, 3) AS ends,
           CASE WHEN u.n > 1 THEN (get_byte(e.tasks, 25 * u.n - 49) << 16) + (get_byte(e.tasks, 25 * u.n - 48) << 8)
                                  + get_byte(e.tasks, 25 * u.n - 47) ELSE 0 END AS begins) w
CROSS JOIN LATERAL (
    SELECT 25 * e.number + 1 + w.begins AS begin, w.ends - w.begins AS all_bytes, b.key, b.kind, b.headers,
           w.ends - w.begins - b.key - b.kind - b.headers AS payload
    FROM (SELECT (get_byte(h.head, 4) << 8) + get_byte(h.head, 5) AS key, get_byte(h.head, 6) AS kind,
                 (get_byte(h.head, 7) << 8) + get_byte(h.head, 8) AS headers) b) l;

CREATE FUNCTION $S.pack(at int, id uuid, key bytea, kind bytea, headers bytea, payload bytea)
RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    nothing bytea := substr(uuid_send(id), 17);
    a bytea := coalesce(key, nothing);
    b bytea := coalesce(kind, nothing);
    c bytea := coalesce(headers, nothing);
    d bytea := coalesce(payload, nothing);
BEGIN
    RETURN substr(int2send(at::smallint), 2)
        || substr(int4send(octet_length(a) + octet_length(b) + octet_length(c) + octet_length(d)), 2)
        || substr(int4send(octet_length(a)), 3) || substr(int4send(octet_length(b)), 4)
        || substr(int4send(octet_length(c)), 3) || uuid_send(id) || a || b || c || d;
END
$$;

CREATE TABLE $S.settled (
    partition int NOT NULL,
    shard int NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    segment smallint NOT NULL,
    positions bigint[] NOT NULL
) PARTITION BY LIST (segment);
CREATE TABLE $S.settled_0 PARTITION OF $S.settled FOR VALUES IN (0)
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE $S.settled_1 PARTITION OF $S.settled FOR VALUES IN (1) WITH (autovacuum_enabled = off);
CREATE TABLE $S.settled_2 PARTITION OF $S.settled FOR VALUES IN (2) WITH (autovacuum_enabled = off);
ALTER TABLE $S.settled_0 REPLICA IDENTITY FULL;
CREATE INDEX settled_0_last ON $S.settled_0 (partition, shard, last);
CREATE INDEX settled_1_last ON $S.settled_1 (partition, shard, last);
CREATE INDEX settled_2_last ON $S.settled_2 (partition, shard, last);

CREATE VIEW $S.waiting AS
SELECT e.* FROM $S.tasks e
WHERE NOT EXISTS (
    SELECT FROM $S.settled t
    WHERE t.segment = e.segment AND t.partition = e.partition AND t.shard = e.shard AND t.last >= e.position
      AND t.first <= e.position AND e.position = ANY (t.positions));

CREATE TABLE $S.retries (
    partition int NOT NULL,
    shard int NOT NULL,
    position bigint NOT NULL,
    attempts int NOT NULL,
    not_before_ms bigint NOT NULL,
    PRIMARY KEY (partition, shard, position)
) WITH (fillfactor = 70);

CREATE TABLE $S.errors (
    partition int NOT NULL,
    shard int NOT NULL,
    position bigint NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    attempts int NOT NULL,
    expires_ms bigint NOT NULL,
    error bytea NOT NULL,
    PRIMARY KEY (partition, shard, position, number)
);

CREATE TABLE $S.kept (
    partition int NOT NULL,
    shard int NOT NULL,
    id uuid NOT NULL,
    state smallint NOT NULL,
    attempts int NOT NULL,
    finished_ms bigint NOT NULL,
    expires_ms bigint NOT NULL,
    job uuid,
    due_ms bigint,
    grp smallint,
    priority smallint,
    key bytea,
    kind bytea,
    headers bytea,
    payload bytea,
    result bytea,
    errors bytea[],
    PRIMARY KEY (partition, shard, id)
);
CREATE INDEX kept_finished ON $S.kept (finished_ms, partition, shard, id);
CREATE INDEX kept_expires ON $S.kept (expires_ms);
CREATE INDEX kept_state ON $S.kept (partition, state, expires_ms);
CREATE INDEX kept_job ON $S.kept (partition, job, shard, id) WHERE job IS NOT NULL;

CREATE SEQUENCE $S.versions;
CREATE SEQUENCE $S.quiet_versions MINVALUE 4503599627370496;
CREATE TABLE $S.records (
    name bytea PRIMARY KEY,
    value bytea NOT NULL,
    version bigint NOT NULL,
    expires_ms bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX records_expire ON $S.records (expires_ms) WHERE expires_ms > 0;

CREATE FUNCTION $S.now_ms() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN GREATEST(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, (SELECT last_value FROM $S.clock));
END
$$;

CREATE FUNCTION $S.begin_write() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = 'KL002',
            MESSAGE = format('Keyline needs the isolation level read committed: ALTER ROLE %I SET '
                             || 'default_transaction_isolation = %L', session_user, 'read committed');
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

CREATE FUNCTION $S.lock_shards(base int, ps int[], ss int[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock($L, x.number)
    FROM (SELECT DISTINCT base + (hashint8((u.p::bigint << 16) | u.s) & 1023) AS number
          FROM unnest(ps, ss) AS u(p, s) ORDER BY 1) x;
END
$$;

CREATE FUNCTION $S.partition(wanted bytea, len int, OUT its_number int, OUT its_len int) LANGUAGE plpgsql AS $$
BEGIN
    SELECT t.number, t.shard_prefix_len INTO its_number, its_len FROM $S.partitions t WHERE t.name = wanted;
    IF FOUND THEN
        RETURN;
    END IF;
    PERFORM $S.begin_write();
    LOCK TABLE $S.partitions IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO $S.partitions (number, name, shard_prefix_len)
        SELECT coalesce(max(t.number), 0) + 1, wanted, len FROM $S.partitions t
        ON CONFLICT (name) DO NOTHING;
    SELECT t.number, t.shard_prefix_len INTO its_number, its_len FROM $S.partitions t WHERE t.name = wanted;
END
$$;
);

/* Gives the functions that this transaction has made their search path; others in the schema are not ours. */
const char kl__pg_sql_paths[] = KL_SQL(
DO $$
DECLARE
    f record;
BEGIN
    FOR f IN SELECT p.oid::regprocedure AS it FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
             WHERE n.nspname = $C AND p.xmin = pg_current_xact_id()::xid LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', f.it);
    END LOOP;
END
$$;
);
