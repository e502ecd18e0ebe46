/* postgres.h - the PostgreSQL engine: a store in a schema of a database that others use too.
 *
 *     call -> parameters (params.c) -> one function of the schema, one transaction (pool.c) -> take its rows apart
 *
 *     postgres.c   the engine's table; opening, closing, URL, clock, partitions
 *     connect.c    a connection: made, with a limit for each address
 *     pool.c       connections: lent, given back, replaced when they break; what errors mean
 *     links.c      every connection, and how a call that waits for its answer is ended
 *     watch.c      whether a server that is waited for is silent
 *     names.c      whether the database is still the one that was opened
 *     schema.c     the schema: made on first use, checked at every opening
 *     sql_*.c      its tables and functions: what is true about the data is written there
 *     append.c, append_group.c, scan.c, read.c, settle.c, records.c      the calls
 *     row.h        the tasks of a row, as bytes
 *     seen.c       what scans have shown, kept for those who read and settle it
 *     inbox.c      taking in what was put in SQL
 *     wait.c       being told of appends by LISTEN, or else asking now and then
 *     upkeep.c     a thread that takes away what is settled or has expired
 *
 * P1  Each call is one statement, and so one transaction: it is there whole, or not at all.
 * P2  Nothing depends on the session, except for the one connection that listens: any transaction may run on any
 *     connection, also behind a pooler. Where there is none, statements are prepared, which saves parsing them.
 * P3  A call whose connection was lost is made again only where the contract makes that safe (S5); else it fails with
 *     KL_EBUSY.
 * P4  Locks of shards are taken in order of their numbers, so that calls do not wait for one another in a circle. */
#ifndef KL_STORE_POSTGRES_H
#define KL_STORE_POSTGRES_H

#include <libpq-fe.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/compare.h"
#include "base/told.h"
#include "keyline/store.h"
#include "store/away.h"

enum {
    KL_PG_VERSION = 2,         /* of the schema */
    KL_PG_SERVER_MIN = 130000, /* as PQserverVersion tells it */
    KL_PG_POOL = 8,            /* connections, beside the one that listens; ?pool= */
    KL_PG_POOL_MAX = 64,
    KL_PG_LINKS = KL_PG_POOL_MAX + 16, /* the one that listens, and others outside of the pool */
    KL_PG_PATIENCE_MS = 10000,         /* how long a call is made again while there is no connection */
    KL_PG_HASTY_MS = 3000, /* the same of a store that is hasty: so long after the server went away, and then at once */
    KL_PG_WHY_BYTES = 400,
    KL_PG_SCHEMA_BYTES = 64, /* a name and its zero byte: what PostgreSQL takes */
    KL_PG_SHARDS_MAX = 256,  /* locks in one transaction: a server has 64 for each connection, about */
    KL_PG_DUE = 32,          /* lines as the schema numbers them: priorities from 0 on, and these */
    KL_PG_RETRY = 33,
    KL_PG_INBOX = 0, /* for those who wait: no partition */
    KL_PG_NEWS = 256,
    KL_PG_STATEMENTS = 64, /* bits of kl__pg_link.prepared */
};

/* Somebody who waits for appends to a partition; wait.c. */
typedef struct kl__pg_waiter {
    struct kl__pg_waiter *next;
    uint32_t partition;
    bool told;
} kl__pg_waiter;

typedef struct kl__pg_seen kl__pg_seen;

/* A connection. */
typedef struct kl__pg_link {
    PGconn *conn;      /* NULL: none */
    int socket;        /* our own descriptor of it; -1: not connected yet */
    int64_t since_ns;  /* somebody waits on it; 0: nobody does */
    bool cut;          /* and will be told that it is lost */
    bool direct;       /* its session is ours alone: there is no pooler in between */
    bool strict;       /* its transactions are not read committed unless they say so */
    uint64_t prepared; /* which of the store's statements it knows, a bit each */
} kl__pg_link;

typedef struct kl__pg_member kl__pg_member;
typedef struct kl__pg_name kl__pg_name; /* of a partition; names.c */
typedef struct kl__pg_low kl__pg_low;   /* where a queue's inbox begins; inbox.c */

/* Appends of several threads; append_group.c. */
typedef struct kl__pg_groups {
    pthread_mutex_t mutex; /* holds for all that follows */
    pthread_cond_t ended;  /* a group ended */
    kl__pg_member *line;
    uint32_t count; /* in the line */
    bool under_way; /* somebody leads */
    int64_t ended_ns;
    uint32_t expected;  /* how many were there when the last group ended, its own included; */
    uint32_t lingering; /* how many wait for the rest of them */
    uint32_t vain;      /* the longer nobody came who was waited for, */
    uint32_t rests;     /* the more groups do not wait */
} kl__pg_groups;

typedef struct kl__pg {
    kl_store_opts opts;
    char *url; /* for libpq: without the parameters that are ours */
    char schema[KL_PG_SCHEMA_BYTES];
    uint32_t pool_max;
    bool may_listen;
    bool may_migrate;

    pthread_mutex_t mutex; /* holds for all that follows */
    pthread_cond_t given;  /* a connection was given back */
    PGconn *idle[KL_PG_POOL_MAX];
    uint32_t idle_count, open_count;
    kl__pg_link links[KL_PG_LINKS];
    const char *statements[KL_PG_STATEMENTS]; /* as calls have them; a number is a bit of kl__pg_link */
    int64_t now_ms;                           /* the latest that the clock has shown */

    atomic_int_least64_t cut_ns; /* when calls were last cut; 0: never */
    int64_t rest_ms, try_ns;     /* while there is no connection to be had (else 0): the pause, and its end */

    kl__away away; /* whether the server answers */

    /* names.c */
    kl__pg_name *names;               /* under the mutex; they stay as long as the store */
    atomic_bool replaced;             /* one of them is another's now */
    atomic_int_least64_t names_table; /* by its oid; 0: nobody has looked */

    /* Of a hasty store: since when there is no connection to be had (0: there is), why, and not tried again before. */
    int64_t gone_ns, again_ns;
    char gone_why[KL_PG_WHY_BYTES];
    bool silent; /* and when it was last asked something small, it did not answer */

    kl__pg_seen *seen;     /* what scans have shown; seen.h */
    atomic_uint row_tasks; /* how many tasks a row of entries had, of late; scan.c */

    kl__pg_groups groups;

    /* append.c */
    atomic_int appending;              /* calls under way */
    atomic_uint_least64_t number_next; /* that is drawn if nobody else draws one, */
    atomic_bool shared;                /* and somebody did before the last call */

    /* inbox.c: held by whoever takes in. He needs a second connection at times, so there is one such at a time, and
     * connections are two at least. */
    pthread_mutex_t taking;
    kl__pg_low *lows; /* under the mutex, as is */
    uint64_t lost;    /* how many connections were lost */

    /* wait.c */
    pthread_cond_t told;
    kl__pg_waiter *waiters;
    pthread_t listener;
    bool listener_runs;
    bool listens;              /* and it was proved that notices come through */
    bool pauses;               /* it has stopped listening until somebody waits for a partition */
    int64_t waited_ns;         /* when somebody last did; 0: never */
    uint64_t news[KL_PG_NEWS]; /* how often each partition was heard of, by its number; some share one */
    int wake[2];               /* a pipe: a byte ends the listener's pause, and closing it ends the listener */

    /* upkeep.c */
    pthread_cond_t upkeep_wakes;
    pthread_t upkeep;
    bool upkeep_runs;
    kl__told upkeep_told; /* the thread's own */
    atomic_bool closing;  /* set with the mutex held */
    atomic_bool settles;  /* somebody has settled by this handle */

    /* watch.c */
    atomic_bool hasty; /* as in opts, or since; it stays */
    pthread_t watch;
    bool watch_runs;
    bool opened;
} kl__pg;

/* --- params.c: parameters in binary, and rows --- */

enum { KL_PG_ARGS_MAX = 24 };

/* Parameters of one statement. Built in order; when memory runs out, `failed` is set and the rest is passed over. */
typedef struct kl__pg_args {
    char *bytes;
    size_t used, room;
    bool failed;
    int count;
    Oid types[KL_PG_ARGS_MAX];
    size_t offsets[KL_PG_ARGS_MAX];
    int lengths[KL_PG_ARGS_MAX]; /* -1: NULL */
} kl__pg_args;

/* Types of elements; a parameter that is an array names them, too. */
typedef enum kl__pg_type { KL_PG_BOOL, KL_PG_INT2, KL_PG_INT4, KL_PG_INT8, KL_PG_UUID, KL_PG_BYTEA } kl__pg_type;

void kl__pg_args_free(kl__pg_args *args);

/* One value. An id of NULL, and bytes without data, are NULL. */
void kl__pg_int(kl__pg_args *args, kl__pg_type type, int64_t value);
void kl__pg_null(kl__pg_args *args, kl__pg_type type);
void kl__pg_null_array(kl__pg_args *args, kl__pg_type type); /* of such elements */
void kl__pg_uuid(kl__pg_args *args, const void *bytes16);
void kl__pg_bytes(kl__pg_args *args, kl_bytes bytes);
void *kl__pg_room(kl__pg_args *args, size_t len); /* the same, for the caller to fill; NULL: out of memory */

/* An array: its elements follow, `count` of them. */
void kl__pg_array(kl__pg_args *args, kl__pg_type type, size_t count);
void kl__pg_add_int(kl__pg_args *args, kl__pg_type type, int64_t value);
void kl__pg_add_int_or_null(kl__pg_args *args, kl__pg_type type, int64_t value); /* 0: NULL */
void kl__pg_add_uuid(kl__pg_args *args, const void *bytes16);
void kl__pg_add_bytes(kl__pg_args *args, kl_bytes bytes);
void kl__pg_add_bytes_or_null(kl__pg_args *args, kl_bytes bytes); /* empty: NULL */
void *kl__pg_add_room(kl__pg_args *args, size_t len);             /* bytes for the caller to fill, as above */
void kl__pg_add_null(kl__pg_args *args);

/* A value of a row; integers of any width; NULL is 0, or empty. */
int64_t kl__pg_get_int(const PGresult *rows, int row, int column);
int64_t kl__pg_get_text_int(const PGresult *rows, int row, int column); /* of an answer in text */
kl_bytes kl__pg_get_bytes(const PGresult *rows, int row, int column);
kl_task_id kl__pg_get_id(const PGresult *rows, int row, int column);

/* An array of a row: how many elements it has, and element `index` of those (KL_ASSERTed to be in it). */
size_t kl__pg_get_length(const PGresult *rows, int row, int column);
int64_t kl__pg_get_element_int(const PGresult *rows, int row, int column, size_t index);
kl_bytes kl__pg_next_element(kl_bytes *rest); /* of what kl__pg_get_elements gave */
kl_bytes kl__pg_get_elements(const PGresult *rows, int row, int column);

/* --- pool.c --- */

typedef struct kl__pg_call {
    const char *sql; /* $S stands for the schema */
    kl__pg_args *args;
    bool repeats; /* may be made again when nobody knows what came of it */
} kl__pg_call;

/* Makes the call. KL_OK: *ret_rows is the caller's to PQclear. Errors are those of store.h. */
kl_rc kl__pg_ask(kl__pg *pg, const kl__pg_call *call, PGresult **ret_rows);

/* The same, and in the same packet a transaction of another statement behind it (NULL: none), which is made also when
 * the first has failed. *ret_rows: the answer of the first. Where the first was good and the second was not, nobody
 * knows: it is as if the connection had been lost. */
typedef struct kl__pg_step {
    const char *sql;
    const kl__pg_args *args;
} kl__pg_step;

kl_rc kl__pg_ask_then(kl__pg *pg, const kl__pg_call *call, const kl__pg_step *then, PGresult **ret_rows);

/* The same where the rows do not matter. */
kl_rc kl__pg_do(kl__pg *pg, const kl__pg_call *call);

/* Several statements on one connection, all or none of which have an effect. Returns the answer of the last one, or of
 * the first that failed; NULL: the connection failed. */
typedef PGresult *kl__pg_send_fn(PGconn *conn, void *ctx);
kl_rc kl__pg_send(kl__pg *pg, kl__pg_send_fn *send, void *ctx, bool repeats, PGresult **ret_rows);

/* One statement on a connection, for such a function. */
PGresult *kl__pg_exec(PGconn *conn, const char *sql, const kl__pg_args *args);

/* A statement without parameters that names the schema; its answer is text. NULL: out of memory, or no connection. */
PGresult *kl__pg_run(const kl__pg *pg, PGconn *conn, const char *sql);
kl_rc kl__pg_fail_read_only(const char *text); /* what the server said of a write to a standby */

/* The answer is not an error. */
static inline bool kl__pg_is_good(const PGresult *rows)
{
    ExecStatusType status = PQresultStatus(rows);
    return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

/* Its session is the server's, with no pooler in between. */
bool kl__pg_is_direct(PGconn *conn);
void kl__pg_pool_close(kl__pg *pg);

/* Text with $S, $C and $L replaced; the caller kl__frees it. NULL: out of memory. */
char *kl__pg_expand(const kl__pg *pg, const char *sql);

void kl__pg_log(const kl__pg *pg, kl_log_level level, const char *format, ...) KL_PRINTF(3, 4);

/* Of a text of libpq's, which ends with a newline; not more than a sentence has room for. */
int kl__pg_length(const char *text);

/* --- connect.c --- */

/* A connection of one's own, not of the pool; for kl__pg_disconnect. Somebody waits on it from the beginning. KL_EBUSY:
 * there is none to be had now. KL_EINVAL: as the store is opened, the login is refused. */
kl_rc kl__pg_connect(kl__pg *pg, PGconn **ret_conn);

/* --- links.c --- */

/* NULL: it has none, since there are too many; then it cannot be cut. With the mutex held. */
kl__pg_link *kl__pg_link_of(kl__pg *pg, const PGconn *conn);

/* It is being made, and somebody waits for it; another one is made in its place; it has been made. */
void kl__pg_link_add(kl__pg *pg, PGconn *conn);
void kl__pg_link_pass(kl__pg *pg, const PGconn *conn, PGconn *next);
void kl__pg_link_made(kl__pg *pg, const PGconn *conn);

/* Somebody waits on it from now on, or nobody. */
void kl__pg_link_wait(kl__pg *pg, const PGconn *conn, bool waits);
bool kl__pg_link_is_cut(kl__pg *pg, const PGconn *conn);

/* Closes it; NULL is fine. */
void kl__pg_disconnect(kl__pg *pg, PGconn *conn);

/* Calls that have waited for the server for so long fail, and are not made again. */
void kl__pg_cut(void *self, int64_t wait_ms);

/* Waits for the end of a thread of the store's own, whose calls are cut when they take long. */
void kl__pg_join(kl__pg *pg, pthread_t thread);

/* --- names.c --- */

/* A partition was opened under this name. KL_ESYSTEM: as below. */
kl_rc kl__pg_names_note(kl__pg *pg, const char *name, uint32_t number);

/* KL_ESYSTEM: the database is another one than before, and the sentence says what to do. */
kl_rc kl__pg_names_hold(const kl__pg *pg);

/* Looks on this connection. KL_EBUSY: it cannot be told now. */
kl_rc kl__pg_names_check(kl__pg *pg, PGconn *conn);

/* `partitions` has this oid, of late: looks if it is another than before. */
kl_rc kl__pg_names_see(kl__pg *pg, int64_t table);
void kl__pg_names_free(kl__pg *pg);

/* --- inbox.c --- */

/* A connection was lost: where inboxes begin is not known any more. */
void kl__pg_lows_forget(kl__pg *pg);
void kl__pg_lows_free(kl__pg *pg);

/* --- schema.c --- */

/* Makes the schema when it is not there, or brings it up to date. KL_EINVAL: it is of a newer release, or of a build
 * with other steps; or something is to be done, and the URL says that it is not to be done by opening. */
kl_rc kl__pg_schema_open(kl__pg *pg);

/* How many steps had been applied, and are now; with only_look none is. KL_EINVAL: as above, of the schema. */
kl_rc kl__pg_schema_migrate(kl__pg *pg, bool only_look, int *ret_before, int *ret_after);

/* --- wait.c, upkeep.c, watch.c --- */

/* Waits until `ask` says yes, which it is asked whenever something was appended to the partition, or until wait_ms have
 * passed. For KL_PG_INBOX it ends with whatever was put into the inbox, also for another queue. */
typedef kl_rc kl__pg_ask_fn(kl__pg *pg, const void *ctx, bool *ret_yes);
kl_rc kl__pg_wait_until(kl__pg *pg, uint32_t partition, int64_t wait_ms, kl__pg_ask_fn *ask, const void *ctx,
                        bool *ret_yes);
void kl__pg_wait_close(kl__pg *pg);
kl_rc kl__pg_upkeep_start(kl__pg *pg);
void kl__pg_upkeep_stop(kl__pg *pg);

/* Makes a store hasty: from before it is opened, or later. To be stopped also where opening fails. */
kl_rc kl__pg_watch_start(void *self);
void kl__pg_watch_stop(kl__pg *pg);

/* --- The calls --- */

/* By partition, then by shard. */
static inline int kl__pg_place_compare(kl_place a, kl_place b)
{
    return a.partition != b.partition ? (a.partition < b.partition ? -1 : 1)
                                      : (a.shard > b.shard) - (a.shard < b.shard);
}

void kl__pg_groups_open(kl__pg_groups *groups);
void kl__pg_groups_close(kl__pg_groups *groups);
kl_rc kl__pg_append(void *self, const kl_append *append);
kl_rc kl__pg_scan(void *self, kl_scan *scans, size_t count);
kl_rc kl__pg_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts);
kl_rc kl__pg_lines(void *self, uint32_t partition, uint32_t *ret_priorities);
kl_rc kl__pg_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
kl_rc kl__pg_settle(void *self, kl_settle *batches, size_t count);
kl_rc kl__pg_fence(void *self, kl_fence *fences, size_t count);
kl_rc kl__pg_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen);
kl_rc kl__pg_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                     kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
kl_rc kl__pg_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
kl_rc kl__pg_forget(void *self, kl_place place, const kl_task_id *ids, size_t count);
kl_rc kl__pg_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records);
kl_rc kl__pg_put(void *self, kl_write *writes, size_t count);
kl_rc kl__pg_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                  size_t *ret_count);
kl_rc kl__pg_left(void *self, const char *queue, uint64_t *ret_count);
kl_rc kl__pg_refused(void *self, const char *queue, kl_arena *arena, uint64_t *ret_count, const char **ret_why);
kl_rc kl__pg_take_in(void *self, const char *queue, int64_t wait_ms, size_t max, kl_take_fn *take, void *ctx,
                     size_t *ret_count);

#endif
