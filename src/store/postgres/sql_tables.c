/* sql_tables.c - the tables of the schema, and the small functions that the others share.
 *
 *     counters    a row per shard: how many positions were given out, and whether it is sealed. Every append updates it
 *                 in its own transaction, so positions become visible in their order (S2).
 *     entries     a row per task, never updated. slot = shard * 64 + line, and position = count * 64 + line, where line
 *                 is 0 to 31 for priorities -16 to 15, and 32 for the due line: so a position leads to the primary key.
 *     settled     a row per settled batch and shard: the positions that are finished.
 *     retries     a row per task of the retry line; its entry stays where it is.
 *     errors      what attempts of waiting tasks left to be kept.
 *     kept        finished tasks.
 *
 * A task waits while its entry is there and its position stands in no row of `settled`. It stands in the retry line
 * exactly while it waits and has a row in `retries`. NULL stands for empty and for 0 where most rows have that. */
#include "store/postgres/sql.h"

/* clang-format off */
const char kl__pg_sql_tables[] = KL_SQL(
CREATE TABLE $S.clock (floor_ms bigint NOT NULL);
INSERT INTO $S.clock VALUES (0);

CREATE TABLE $S.partitions (
    number int PRIMARY KEY,
    name bytea NOT NULL UNIQUE,
    shard_prefix_len int NOT NULL
);

CREATE TABLE $S.counters (
    partition int NOT NULL,
    shard int NOT NULL,
    next bigint NOT NULL,
    sealed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (partition, shard)
) WITH (fillfactor = 50);

CREATE TABLE $S.fences (
    partition int NOT NULL,
    shard int NOT NULL,
    epoch bigint NOT NULL,
    PRIMARY KEY (partition, shard)
) WITH (fillfactor = 50);

CREATE TABLE $S.tokens (
    token uuid PRIMARY KEY,
    since_ms bigint NOT NULL
);
CREATE INDEX tokens_since ON $S.tokens USING brin (since_ms) WITH (pages_per_range = 16, autosummarize = on);

CREATE TABLE $S.entries (
    partition int NOT NULL,
    slot int NOT NULL,
    position bigint NOT NULL,
    id uuid NOT NULL,
    job uuid,
    due_ms bigint,
    grp smallint,
    priority smallint,
    key bytea,
    kind bytea,
    headers bytea,
    payload bytea,
    PRIMARY KEY (partition, slot, position)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX entries_due ON $S.entries (partition, slot, due_ms, position) WHERE due_ms IS NOT NULL;

CREATE TABLE $S.settled (
    partition int NOT NULL,
    shard int NOT NULL,
    last bigint NOT NULL,
    positions bigint[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX settled_last ON $S.settled (partition, shard, last);

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
CREATE TABLE $S.records (
    name bytea PRIMARY KEY,
    value bytea NOT NULL,
    version bigint NOT NULL,
    expires_ms bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX records_expire ON $S.records (expires_ms) WHERE expires_ms > 0;

CREATE FUNCTION $S.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT GREATEST(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, (SELECT floor_ms FROM $S.clock))
$$;

CREATE FUNCTION $S.begin_write() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'Keyline needs the isolation level read committed'
            USING ERRCODE = 'KL002';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

CREATE FUNCTION $S.lock_shard(p int, s int) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_advisory_xact_lock($L, hashint8((p::bigint << 16) | s))
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
