/* sql_records.c - records, as functions of the schema: small values with a version.
 *
 * Versions come from a sequence, so none is ever used again, not even when the database was restored (skip_positions);
 * removing draws one, too, so that whoever looks from time to time whether anything has changed need not read it all.
 * What nobody needs to be told of has versions of its own, far above the others (2^52). The writes of a call are one
 * transaction, each judged for itself and in order; the row of a name stays locked until its end. */
#include "store/postgres/sql.h"

/* clang-format off */
const char kl__pg_sql_records[] = KL_SQL(
CREATE FUNCTION $S.get(names bytea[])
RETURNS TABLE (n bigint, name bytea, value bytea, version bigint, expires_ms bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$ #variable_conflict use_column
DECLARE
    at_ms bigint := $S.now_ms();
BEGIN
    RETURN QUERY
    SELECT a.n, r.name, r.value, r.version, r.expires_ms
    FROM unnest(names) WITH ORDINALITY AS a(name, n) JOIN $S.records r ON r.name = a.name
    WHERE r.expires_ms = 0 OR r.expires_ms > at_ms;
END
$$;

CREATE FUNCTION $S.list(low bytea, high bytea, behind bytea, lim int)
RETURNS TABLE (n bigint, name bytea, value bytea, version bigint, expires_ms bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$ #variable_conflict use_column
DECLARE
    at_ms bigint := $S.now_ms();
BEGIN
    RETURN QUERY
    SELECT 0::bigint, r.name, r.value, r.version, r.expires_ms
    FROM $S.records r
    WHERE r.name >= low AND (high IS NULL OR r.name < high) AND (behind IS NULL OR r.name > behind)
      AND (r.expires_ms = 0 OR r.expires_ms > at_ms)
    ORDER BY r.name LIMIT lim;
END
$$;

CREATE FUNCTION $S.check_unused(q text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock($L, 9216 + (hashtext(q) & 1023))
       OR EXISTS (SELECT FROM $S.inbox i WHERE i.queue = q AND i.refused IS NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'KL003',
            MESSAGE = format('a transaction puts tasks into the queue %s, or has just done so; let it end, look at them, '
                             || 'and remove the queue again', q);
    END IF;
END
$$;

CREATE FUNCTION $S.put_record(the_name bytea, was bigint, gone boolean, val bytea, expires bigint, quiet boolean,
                           OUT there bigint, OUT made bigint, OUT ok boolean)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    drawn text := $C || CASE WHEN quiet THEN '.quiet_versions' ELSE '.versions' END;
    old record;
    lives boolean;
BEGIN
    LOOP
        SELECT r.value, r.version, r.expires_ms INTO old FROM $S.records r WHERE r.name = the_name FOR UPDATE;
        lives := FOUND AND (old.expires_ms = 0 OR old.expires_ms > $S.now_ms());
        there := CASE WHEN lives THEN old.version ELSE 0 END;
        made := 0;
        IF gone THEN
            ok := there = was OR there = 0;
            IF there = was AND lives AND substr(the_name, 1, 6) = 'queue/' THEN
                PERFORM $S.check_unused(convert_from(substr(the_name, 7), 'UTF8'));
            END IF;
            IF there = was THEN
                DELETE FROM $S.records r WHERE r.name = the_name;
                PERFORM nextval(drawn);
            END IF;
            RETURN;
        END IF;
        IF there <> was THEN
            ok := lives AND old.value = val AND old.expires_ms = expires;
            made := CASE WHEN ok THEN there ELSE 0 END;
            RETURN;
        END IF;
        IF old.version IS NOT NULL THEN
            UPDATE $S.records r SET value = val, version = nextval(drawn), expires_ms = expires
            WHERE r.name = the_name RETURNING r.version INTO made;
        ELSE
            INSERT INTO $S.records AS r (name, value, version, expires_ms)
            VALUES (the_name, val, nextval(drawn), expires)
            ON CONFLICT (name) DO NOTHING RETURNING r.version INTO made;
        END IF;
        ok := true;
        EXIT WHEN made IS NOT NULL;
    END LOOP;
END
$$;

CREATE FUNCTION $S.put_records(names bytea[], wases bigint[], gones boolean[], vals bytea[], expireses bigint[],
                               quiets boolean[])
RETURNS TABLE (n bigint, there bigint, made bigint, ok boolean) LANGUAGE plpgsql AS $$ #variable_conflict use_column
DECLARE
    w record;
    o record;
BEGIN
    PERFORM $S.begin_write();
    IF NOT EXISTS (SELECT FROM $S.started s
                   WHERE s.since = pg_postmaster_start_time() AND s.file = pg_relation_filepath(s.tableoid)) THEN
        PERFORM $S.skip_positions();
    END IF;
    FOR w IN SELECT * FROM unnest(names, wases, gones, vals, expireses, quiets)
                      WITH ORDINALITY AS u(name, was, gone, val, expires, quiet, num) LOOP
        SELECT * INTO o FROM $S.put_record(w.name, w.was, w.gone, w.val, w.expires, w.quiet);
        n := w.num;
        there := o.there;
        made := o.made;
        ok := o.ok;
        RETURN NEXT;
    END LOOP;
END
$$;
);
