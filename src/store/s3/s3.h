/* s3.h - the S3 engine: a store in a bucket, with no server of its own.
 *
 * A shard is two logs of numbered objects, and whoever puts the next number first has it (put-if-absent):
 *
 *     tasks/<partition>/<shard>/<number>.json     what was appended: one object for all that one process appends at once
 *     journal/<partition>/<shard>/<number>.json   what came of it: settled, tried again, kept, forgotten; and fences
 *     index/<partition>/<shard>.json              a checkpoint: what the journal says up to some number
 *
 * Everything else follows from reading them in order. A process keeps a replica of the shards that it reads: the memory
 * engine, fed from the logs (replica.c, journal.c), answers scan, read, counts, results and find.
 *
 *     call -> bring the replica up to date (refresh.c) -> ask it
 *     append -> one object per shard (append.c);  settle, fence, forget -> one object per shard (settle.c)
 *
 *     s3.c        the engine's table; URL, opening, clock, partitions, metrics
 *     http.c, clock.c, sign.c, creds.c, list.c  requests
 *     selftest.c  what the server must be able to do
 *     body.c      what stands in objects
 *     refresh.c, pulse.c, marks.c  reading logs, and finding out where they end and what is in them
 *     seal.c, tried.c  shards that take no more, and appends that meet one
 *     upkeep.c    checkpoints, and deleting what nobody needs any more
 *     records.c, names.c  records, by the ETags of their objects
 *     import.c    taking in what an object-per-task system left
 *     bill.c      how many requests it took
 *
 * E1  A number is used once: it is put if absent, and deleted only long after everybody who might still try it has had
 *     to look again (KL_S3_TRUST_MS < KL_S3_GRACE_MS).
 * E2  Replicas of a shard are equal once they have read the same logs: nothing in them depends on who reads, or when.
 * E3  A journal object that says epoch e was put by somebody who had read all before it, so no fence above e is among
 *     those. That is the fence.
 * E4  The newest object of a log is never deleted, so a listing always tells where it ends.
 * E5  A replica may be cleared at any time, to be read anew (kl__s3_shard_clear). Whoever answers from it makes sure
 *     that it was not cleared since it was brought up to date: half a shard looks like one that has no more.
 * E6  Whoever knows the newest number of a log of tasks also knows whether it is a seal: nobody puts one behind it. */
#ifndef KL_STORE_S3_H
#define KL_STORE_S3_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/compare.h"
#include "base/tree.h"
#include "keyline/store.h"
#include "store/memory/memory.h"
#include "store/s3/http.h"

enum {
    KL_S3_FORMAT = 1,
    KL_S3_INDEX_BITS = 16,       /* position = number of the object, and index in it */
    KL_S3_ENTRIES_MAX = 65536,   /* in one object */
    KL_S3_TRUST_MS = 60000,      /* so long the end of a log may be taken for known */
    KL_S3_GRACE_MS = 600000,     /* so long what is settled stays: far more than trust and a request's patience */
    KL_S3_CHECKPOINT = 64,       /* journal objects between two checkpoints; ?checkpoint= */
    KL_S3_TOKEN_MS = 10 * 60000, /* a token is known so long */
    KL_S3_SETTLE_MS = 250,       /* between two settles of a busy process; ?settle_ms= */
    KL_S3_POLL_MIN_MS = 100,     /* how old a look at the bucket may be, when nothing has changed for a while */
    KL_S3_POLL_MAX_MS = 5000,    /* and at most; ?poll_ms= */
    KL_S3_REST_MIN_MS = 250,     /* how often one shard is asked for, where a look does not show all of them */
    KL_S3_FRESH_MS = 5,          /* what others have done may be seen so much later */
    KL_S3_PROBES = 3,            /* shards that are asked one by one rather than by a listing */
    KL_S3_DUE_MS = 5000,         /* so long the due line may wait while there is more than enough that is ready */
    KL_S3_WIDE = 64,             /* objects that are read at once */
    KL_S3_MARK_MS = 3600000,     /* a mark of a line is put anew so often: far more than a request can be on its way */
    KL_S3_BROKEN_MS = 60000,     /* so long a shard that is not understood is left alone */
    KL_S3_BILLED_MS = 60000,     /* processes that live longer leave an account of their requests */
    KL_S3_BILL_EVERY_MS = 600000,
    KL_S3_PARTITIONS = 4096,  /* of one store, at most */
    KL_S3_PEEKED_MAX = 256,   /* and where the bucket is too full to be looked at whole */
    KL_S3_COUNTED_MAX = 4096, /* objects, and archives, that counts reads before it says "at least" */
};

/* A task object that says: nothing follows. It is shorter than any other, so a listing tells it from them. */
#define KL_S3_SEAL "{\"keyline\":1,\"sealed\":true,\"appends\":[]}\n"

/* A finished task's `line`, which it has no other use for: where it stands outside memory. */
enum { KL_S3_IN_JOURNAL, KL_S3_BEING_ARCHIVED, KL_S3_ARCHIVED };

/* Archives of finished tasks that are in memory: none, as many as a count reads, or all that have not expired. */
typedef enum { KL_S3_KEPT_NONE, KL_S3_KEPT_SOME, KL_S3_KEPT_ALL } kl__s3_kept;

/* A task object that is known. */
typedef struct kl__s3_object {
    kl__tree_node by_number;
    uint64_t number;
    bool loaded;
    bool damaged;                 /* loaded, but not all of it is understood: it stays, for a release that does */
    uint32_t count, live;         /* loaded: its tasks, and those that wait; one more if it is damaged */
    kl__memory_task **tasks;      /* loaded: NULL where it is settled, or a repeat */
    uint8_t *settled;             /* not loaded, or damaged: a bit for each that is settled */
    uint32_t settled_room;        /* bits */
    int64_t dead_ns;              /* when the last of its tasks was settled */
    struct kl__s3_retry *retries; /* not loaded, or damaged: tasks of it that are to be tried again and not in memory */
} kl__s3_object;

typedef struct kl__s3_token {
    kl__tree_node by_value;
    struct kl__s3_token *next; /* the next younger one */
    uint64_t number;           /* of the object that brought it */
    int64_t at_ms;
    kl_token token;
} kl__s3_token;

/* A task to be tried again whose object is not loaded yet. */
typedef struct kl__s3_retry {
    struct kl__s3_retry *next;
    uint64_t position;
    uint32_t attempts;
    int64_t due_ms;
    kl__memory_left *left;
} kl__s3_retry;

typedef struct kl__s3_forgotten {
    kl__tree_node by_id;
    kl_task_id id;
    int64_t until_ms;
} kl__s3_forgotten;

struct kl__s3_partition;

typedef struct kl__s3_shard {
    /* never cleared */
    kl_place place;
    struct kl__s3_partition *partition;
    size_t part;         /* of the round that appends to it; the appender's */
    char digits[8];      /* of the shard, as names have it */
    uint64_t generation; /* how often it was cleared: what was read before that says nothing about what is here */

    /* the journal */
    bool loaded;           /* the checkpoint has been read */
    bool owned;            /* fenced by this process, and by nobody since as far as it knows */
    uint64_t fenced;       /* the last epoch that this process fenced it with; 0: it was refused since, or never did */
    uint64_t journal;      /* read up to this number */
    uint64_t journal_from; /* it ended there when it was first read to its end; 0: it was not yet */
    int64_t journal_ns;    /* when it was known to end there */
    int64_t followed_ns;   /* when it was last read to its end, or written there */
    bool broken; /* something of it is not understood: nothing of it is in memory, and it is left alone for a while */
    int64_t broken_ns; /* since then */
    uint64_t damaged;  /* broken: the number of the journal object; 0: it is the checkpoint */
    uint64_t epoch;
    uint64_t checkpoint;                /* the journal's number in the checkpoint */
    uint64_t swept;                     /* journal objects up to this one are deleted */
    uint64_t tasks_swept;               /* and task objects up to this one */
    uint64_t old_checkpoint, old_first; /* as they were at old_ns: what may be deleted when that is long ago */
    int64_t old_ns;
    int64_t unswept_ns;          /* when deleting last failed; 0: it did not */
    int64_t written_ns;          /* when this process last wrote to the journal; 0: never */
    uint64_t written;            /* and the number of that object */
    int64_t checkpoint_ns;       /* when it was written or read */
    char etag[KL_S3_ETAG_BYTES]; /* of the checkpoint; empty: there is none */

    /* the tasks */
    uint64_t taken;     /* in the replica up to this number */
    uint64_t first;     /* nothing waits up to this number */
    uint64_t tail;      /* the newest that is known of */
    int64_t tail_ns;    /* when it was known to be the newest */
    bool sealed;        /* the newest is a seal */
    bool news;          /* something was read since the end was last found */
    int64_t rest_ms;    /* how long an end is good for where the bucket is too full to be looked at whole */
    bool contended;     /* others append to it, too */
    bool ended;         /* the replica has all of them, as of the last look */
    int64_t due_ns;     /* when the due line was last shown, or first asked for */
    uint64_t tokens_to; /* tokens in the checkpoint are complete up to this number */
    kl__tree_node *objects;
    uint64_t retry_to; /* objects with tasks to be tried again stand up to here */
    kl__tree_node *tokens;
    kl__s3_token *oldest_token, *newest_token;
    uint32_t token_count;
    kl__tree_node *forgotten;
    int64_t used_ns;   /* when a call last looked at it */
    int64_t kept_ns;   /* when somebody last asked for finished tasks */
    kl__s3_kept kept;  /* which archives have been read */
    uint64_t *repeats; /* positions that turned out to be repeats without a token: settled with the next */
    size_t repeat_count, repeat_room;

    /* marks, by line a bit each */
    uint64_t marks_old, marks_young; /* that may be taken away, and that may not, as of that look */
    uint64_t marks_look;
    uint64_t marked; /* by this process, in that period; the last at that time */
    int64_t marked_period, marked_ns;
    int64_t unmarked_ns; /* when it last tried to take some away */
} kl__s3_shard;

typedef struct kl__s3_partition {
    uint32_t number, shard_prefix_len, shard_count;
    char *name;            /* as names of objects have it */
    atomic_bool worked;    /* this process owns or owned a shard of it */
    uint64_t object_bytes; /* of its task objects, the larger ones; 0: none was read */
    uint64_t marks_look;   /* all of its marks were last seen by that look, */
    int64_t marks_ns;      /* at that time */
    kl__s3_shard **shards;
} kl__s3_partition;

/* A name in a listing. */
typedef struct kl__s3_listed {
    char *name;
    char etag[KL_S3_ETAG_BYTES];
    int64_t modified_ms;
    uint64_t size; /* bytes */
} kl__s3_listed;

typedef struct kl__s3_names {
    kl__s3_listed *items;
    size_t count, room;
    bool more; /* the server has more behind these */
} kl__s3_names;

struct kl__s3_appender;
struct kl__s3_records;

typedef struct kl__s3 {
    kl_store_opts opts;
    kl__s3_site site;
    char *prefix; /* of all names, with its slash; may be empty */
    kl__s3_http *http;
    kl__away away;    /* whether the server answers */
    bool unquoted;    /* If-Match takes the ETag without quotes */
    bool caller_time; /* ?clock=caller */
    char *import;     /* ?import=QUEUE: which queue takes in what an object-per-task system left; NULL: none */
    int64_t import_digits, import_ns;
    uint32_t checkpoint_every;
    int64_t settle_ms, poll_ms;
    int64_t grace_ms; /* KL_S3_GRACE_MS; ?grace_ms= with KEYLINE_S3_TEST is for tests of one process alone */

    kl__memory *memory; /* the replica. Its mutex (kl__memory_enter) holds for all partitions and shards below. */
    kl__s3_partition **partitions; /* room for KL_S3_PARTITIONS */
    _Atomic(uint32_t) partition_count;
    pthread_mutex_t partition_mutex; /* one partition is made at a time */
    int64_t floor_ms;                /* no clock below what was written */

    pthread_mutex_t journal_mutex; /* one settle, fence or forget at a time */
    _Atomic(int64_t) settled_ns;   /* when the last settle ended */

    /* refresh.c: one look at the whole bucket for all who ask */
    pthread_mutex_t pulse_mutex;   /* held while it is made */
    _Atomic(int64_t) pulse_ns;     /* when the last one began */
    _Atomic(int64_t) pulse_age_ms; /* how old it may become */
    unsigned pulse_quiet;          /* how many in a row brought nothing new */
    atomic_bool pulse_whole;       /* it showed everything */
    uint64_t marks_look;           /* looks at marks so far */
    _Atomic(uint64_t) clears;      /* of replicas: E5 */

    struct kl__s3_appender *appender;
    pthread_mutex_t round_mutex; /* held while a round is appended: what this process seals, it seals between two */
    struct kl__s3_records *records;
    pthread_mutex_t kept_mutex; /* archives are written or read, not both at once */

    _Atomic(uint64_t) appended, settled; /* tasks, by this process */
    int64_t since_ms;                    /* when it was opened */
    uint64_t bill_nonce;
    int64_t billed_ns; /* when the account was last written */

    pthread_mutex_t upkeep_mutex;
    pthread_cond_t upkeep_wakes;
    pthread_t upkeep;
    bool upkeep_runs, closing;
} kl__s3;

/* --- s3.c --- */

int64_t kl__s3_now(kl__s3 *s3);                                               /* the store's clock */
char *kl__s3_name(const kl__s3 *s3, const char *format, ...) KL_PRINTF(2, 3); /* NULL: no memory; kl__free it */
char *kl__s3_log_name(const kl__s3 *s3, const char *log, const kl__s3_shard *shard, uint64_t number);
uint64_t kl__s3_nonce(void);

/* Whether so much time has passed since then that an object may have been put and deleted meanwhile (E1): a number that
 * seemed free need not have been. */
bool kl__s3_is_late(kl__s3 *s3, int64_t since_ns);

/* As of when a log is known to end with what was put: now, unless the request has taken long (or the process stood
 * still meanwhile), so that others may have gone on. */
int64_t kl__s3_known_since(int64_t asked_ns);
void kl__s3_log(const kl__s3 *s3, kl_log_level level, const char *format, ...) KL_PRINTF(3, 4);
void kl__s3_shard_clear(kl__s3 *s3, kl__s3_shard *shard); /* as if nothing had been read; the mutex is held */

static inline kl__s3_shard *kl__s3_shard_of(kl__s3 *s3, kl_place place)
{
    KL_ASSERT(place.partition >= 1 && place.partition <= s3->partition_count);
    return s3->partitions[place.partition - 1]->shards[place.shard];
}

/* The shard, made if there is none. NULL: no memory. The mutex is held. */
kl__s3_shard *kl__s3_shard_make(kl__s3 *s3, kl_place place);

/* --- list.c --- */

/* One page of names that begin with `prefix` (below the store's own), behind `after` (likewise; NULL: from the first),
 * without the store's prefix. max 0: 1,000. */
kl_rc kl__s3_list_page(kl__s3 *s3, const char *prefix, const char *after, unsigned max, kl__s3_names *ret_names);
void kl__s3_names_free(kl__s3_names *names);

/* Several at once; each `names` is the caller's to free, whatever came of it. */
typedef struct kl__s3_listing {
    const char *prefix, *after;
    unsigned max;
    kl__s3_names names;
} kl__s3_listing;
kl_rc kl__s3_list_pages(kl__s3 *s3, kl__s3_listing *listings, size_t count);

/* Deletes objects by their names, a thousand a request. KL_OK: none of them is there any more. Else some may be. */
kl_rc kl__s3_delete(kl__s3 *s3, char **names, size_t count);

/* --- body.c: what stands in objects --- */

void kl__s3_put_string(kl__s3_text *text, kl_bytes bytes);
void kl__s3_put_bytes(kl__s3_text *text, const char *name, kl_bytes bytes); /* ,"name": or ,"name64": */
void kl__s3_put_id(kl__s3_text *text, const char *name, const kl_task_id *id);
void kl__s3_put_entry(kl__s3_text *text, const kl_entry *entry); /* the members of an object, without braces */
void kl__s3_put_token(kl__s3_text *text, const kl_token *token); /* 32 hex digits, without quotes */

int kl__s3_hex_digit(char c);                                 /* -1: it is none */
bool kl__s3_read_16(const char *text, uint8_t ret_bytes[16]); /* 32 hex digits, with hyphens wherever */

/* Whether an object that is there was written by this very request. */
bool kl__s3_has_nonce(const kl__s3_text *body, uint64_t nonce);

/* Members of an object; missing ones are 0 or empty. Bytes lie in the arena. False: it is not as it should be. */
bool kl__s3_get_int(const json_t *object, const char *name, int64_t *ret_value);
bool kl__s3_get_hex(const json_t *object, const char *name, uint64_t *ret_value);
bool kl__s3_get_id(const json_t *object, const char *name, kl_task_id *ret_id);
bool kl__s3_get_token(const json_t *object, const char *name, kl_token *ret_token, bool *ret_there);
bool kl__s3_get_bytes(const json_t *object, const char *name, kl_arena *arena, kl_bytes *ret_bytes);
bool kl__s3_get_entry(const json_t *object, kl_place place, kl_arena *arena, kl_entry *ret_entry);
json_t *kl__s3_parse(const kl__s3_text *text); /* NULL: no JSON, or of another format; or no memory */
KL_MUST_USE kl_rc kl__s3_parse_json(const kl__s3_text *text, json_t **ret_root); /* KL_EDAMAGED, or KL_ENOMEM */

/* --- replica.c: what the log of tasks says. The mutex is held. --- */

/* The next task object. What of it cannot be understood is passed over, but never deleted. KL_ENOMEM. */
kl_rc kl__s3_apply_tasks(kl__s3 *s3, kl__s3_shard *shard, uint64_t number, const kl__s3_text *body);

kl__s3_object *kl__s3_object_of(kl__s3_shard *shard, uint64_t number);   /* NULL: it is not known */
kl__s3_object *kl__s3_object_make(kl__s3_shard *shard, uint64_t number); /* or the one that is known; NULL: no memory */
void kl__s3_object_free(kl__s3_shard *shard, kl__s3_object *object);     /* takes it out */

/* Of an object that is not loaded, or damaged. */
bool kl__s3_is_settled(const kl__s3_object *object, uint32_t index);
bool kl__s3_set_settled(kl__s3_object *object, uint32_t index); /* false: no memory */
kl__s3_retry **kl__s3_find_retry(kl__s3_object *object, uint64_t position);
void kl__s3_retry_free(kl__s3_retry *retry);

kl__memory_task *kl__s3_task_make(kl__memory_shard *shard, const kl_entry *entry, uint64_t position);
kl__memory_left *kl__s3_left_make(uint32_t attempts, int64_t expires_ms, kl_bytes error, kl_bytes result);

bool kl__s3_has_token(kl__s3_shard *shard, const kl_token *value);
bool kl__s3_remember(kl__s3_shard *shard, const kl_token *value, uint64_t number, int64_t at_ms); /* false: no memory */
void kl__s3_tokens_free(kl__s3_shard *shard);

/* What copies of strings of an object of so many bytes can take: no copy fails then, and what is not understood is
 * damaged. */
bool kl__s3_reserve(kl_arena *arena, size_t bytes);

/* --- journal.c: what the journal says. The mutex is held. --- */

kl_rc kl__s3_fail_damaged(const kl__s3_shard *shard, const char *log,
                          uint64_t number); /* KL_EDAMAGED, with its sentence */

/* The next journal object. KL_EDAMAGED: what of it was understood has been applied; the shard is to be cleared. */
kl_rc kl__s3_apply_journal(kl__s3 *s3, kl__s3_shard *shard, uint64_t number, const kl__s3_text *body);

/* The checkpoint, of a shard of which nothing has been read; an archive of kept tasks. */
kl_rc kl__s3_apply_index(kl__s3 *s3, kl__s3_shard *shard, const kl__s3_text *body);
kl_rc kl__s3_apply_kept(kl__s3 *s3, kl__s3_shard *shard, const kl__s3_text *body);

void kl__s3_forgotten_free(kl__s3_shard *shard, kl__s3_forgotten *one); /* takes it out */

/* A task's end that is kept, as the journal and archives have it. */
typedef struct kl__s3_end {
    uint64_t position;
    const kl_entry *entry;
    kl_task_state state;
    uint32_t attempts;
    int64_t finished_ms, expires_ms;
    kl_bytes error, result;      /* of the last attempt */
    const kl__memory_left *left; /* of those before */
    int64_t left_at_ms;          /* without what has expired by then */
} kl__s3_end;
void kl__s3_put_end(kl__s3_text *text, const kl__s3_end *end);

/* A task that is to be tried again; its errors are those to be added to (journal), or all (index). */
void kl__s3_put_retry(kl__s3_text *text, const kl__s3_retry *retry);

/* What an object has settled, as runs "number.first-last" with commas between; false: nothing. */
bool kl__s3_put_settled(kl__s3_text *text, const kl__s3_object *object);
void kl__s3_put_run(kl__s3_text *text, uint64_t number, uint32_t from, uint32_t to);

/* --- refresh.c --- */

/* Brings the journals of these shards up to date; shards that this process owns are taken as they are. KL_EBUSY: they
 * were cleared or the clock jumped again and again meanwhile. KL_EDAMAGED: some are broken (the sentence is of one of
 * them), and all others are up to date. */
kl_rc kl__s3_refresh(kl__s3 *s3, kl__s3_shard **shards, size_t count, bool owned_too);

bool kl__s3_is_broken(kl__s3 *s3, const kl__s3_shard *shard);

/* Reads on in each of these shards, up to so many objects each. */
typedef struct kl__s3_more {
    kl__s3_shard *shard;
    size_t want;
    int64_t since_ns; /* an end of the log that was known then or later is good enough */
    bool sure;        /* also of a shard that this process owns, which else is looked at as often as the bucket */
} kl__s3_more;
kl_rc kl__s3_extend(kl__s3 *s3, kl__s3_more *more, size_t count);

/* Everything of these shards, up to `max` objects in all. */
kl_rc kl__s3_read_all(kl__s3 *s3, kl__s3_shard **shards, size_t count, size_t max, int64_t since_ns);

/* Archives of kept tasks of these shards, by so many requests at most; SIZE_MAX: all of them. */
kl_rc kl__s3_load_kept(kl__s3 *s3, kl__s3_shard **shards, size_t count, size_t max);

/* GETs one object whole. KL_OK: request->status is 200, or 404: there is none; free it. */
kl_rc kl__s3_get_object(kl__s3 *s3, const char *name, kl__s3_request *request);

/* --- pulse.c --- */

/* Whether it was known then, and that is not longer ago than so. */
bool kl__s3_is_fresh(kl__s3 *s3, int64_t since_ns, int64_t limit_ms);

/* A look at the whole bucket: records, marks and tasks. Not older than so; 0: a new one; -1: as old as it may be while
 * nothing happens. */
kl_rc kl__s3_pulse(kl__s3 *s3, int64_t age_ms);
void kl__s3_pulse_renew(kl__s3 *s3); /* the last one, and one that is under way, is too old from now on */

/* Finds out where the task logs of these shards end (many: by a look at the whole bucket that may be a little old). */
kl_rc kl__s3_discover(kl__s3 *s3, kl__s3_shard **shards, size_t count);

/* Where the task logs of these shards end, by asking for each; all at once. */
kl_rc kl__s3_find_tail(kl__s3 *s3, kl__s3_shard *shard);
kl_rc kl__s3_find_tails(kl__s3 *s3, kl__s3_shard **shards, size_t count);

/* A page of the shard's task objects behind `number`. */
typedef struct kl__s3_page {
    uint64_t first, last; /* 0: there are none */
    bool sealed;          /* the last is a seal */
    bool more;            /* there are more behind */
} kl__s3_page;
kl_rc kl__s3_list_tasks(kl__s3 *s3, const kl__s3_shard *shard, uint64_t number, kl__s3_page *ret_page);

/* Sees to it that marks of the partition's shards have been looked at not long ago. */
kl_rc kl__s3_see_marks(kl__s3 *s3, kl__s3_partition *partition);

/* --- marks.c --- */

typedef struct kl__s3_mark {
    unsigned line; /* a priority from 0 on, or the due line behind them */
    int64_t period;
} kl__s3_mark;
bool kl__s3_read_mark(const char *name, kl__s3_mark *ret_mark); /* false: it is no mark's name */
bool kl__s3_mark_is_old(const kl__s3_mark *mark, int64_t now_ms);
uint64_t kl__s3_lines_of(const kl__s3_shard *shard); /* that have a mark, a bit each; the mutex is held */

/* Of these lines, those that this process has to mark before it appends to them; the name of such a mark (NULL: no
 * memory); it is there. */
uint64_t kl__s3_unmarked(kl__s3 *s3, kl__s3_shard *shard, uint64_t lines);
char *kl__s3_mark_name(kl__s3 *s3, const kl__s3_shard *shard, unsigned line);
void kl__s3_note_marked(kl__s3 *s3, kl__s3_shard *shard, unsigned line);

/* Takes away marks of a shard of ours that say nothing any more. */
kl_rc kl__s3_unmark(kl__s3 *s3, kl__s3_shard *shard);

/* --- upkeep.c --- */

kl_rc kl__s3_upkeep_start(kl__s3 *s3);
void kl__s3_upkeep_stop(kl__s3 *s3);
void kl__s3_upkeep_wake(kl__s3 *s3);
kl_rc kl__s3_checkpoint(kl__s3 *s3, kl__s3_shard *shard);
bool kl__s3_wants_checkpoint(const kl__s3 *s3, const kl__s3_shard *shard); /* with the memory's mutex held */

/* --- seal.c --- */

/* Puts a seal where the log of tasks ends, unless somebody has. */
kl_rc kl__s3_seal(kl__s3 *s3, kl__s3_shard *shard);
bool kl__s3_is_sealed(kl__s3 *s3, const kl__s3_shard *shard);

/* --- tried.c --- */

/* Tokens of the task objects that were put to a sealed shard in its last ten minutes. */
typedef struct kl__s3_recent {
    kl__s3_shard *shard;
    bool read;
    kl_token *tokens;
    size_t count, room;
} kl__s3_recent;

/* The same of all shards that were looked at; zeroed: of none. Of one thread. */
typedef struct kl__s3_tried {
    kl__s3_recent *items;
    size_t count, room;
    int64_t used_ns;
} kl__s3_tried;
void kl__s3_tried_renew(kl__s3_tried *tried); /* what nobody has asked for for a while goes */
void kl__s3_tried_free(kl__s3_tried *tried);

/* What is to be said to an append whose shards are all made. KL_OK: none of them is sealed, or those that are have
 * their part from an earlier try, and there[i] is set for their entries. KL_ESEALED: one of them has not, and never
 * will. KL_EBUSY and other errors: it is not known. */
kl_rc kl__s3_judge_sealed(kl__s3 *s3, kl__s3_tried *tried, const kl_append *append, bool *there);
kl_rc kl__s3_fail_sealed(size_t entry, kl_place place); /* KL_ESEALED, with its sentence */

/* --- settle.c --- */

/* Ends tasks that were appended a moment ago, unless that is over already, in the name of nobody. */
kl_rc kl__s3_revoke(kl__s3 *s3, kl__s3_shard *shard, const uint64_t *positions, size_t count);

/* --- append.c, records.c: their parts of opening and closing --- */

kl_rc kl__s3_appender_open(kl__s3 *s3);
void kl__s3_appender_close(kl__s3 *s3);
kl_rc kl__s3_records_open(kl__s3 *s3);
void kl__s3_records_close(kl__s3 *s3);

/* A look at the bucket showed these records; sorted by name, complete or not. KL_ENOMEM: not all of them are known. */
kl_rc kl__s3_records_seen(kl__s3 *s3, const kl__s3_names *names, bool whole, int64_t seen_ns);

/* What nobody has used for so long goes, unless a look has shown it since; then its value goes. How many stay. */
size_t kl__s3_records_forget(kl__s3 *s3, int64_t age_ms);

/* A document by compare-and-set: partitions.json is one that is no record. */
typedef struct kl__s3_document {
    uint64_t version; /* 0: there is none */
    int64_t expires_ms;
    bool removed;
    kl_bytes value; /* in the arena */
    char etag[KL_S3_ETAG_BYTES];
} kl__s3_document;
kl_rc kl__s3_document_get(kl__s3 *s3, const char *name, kl_arena *arena, kl__s3_document *ret_document);
/* Over what `old` says (version 0: over nothing, or over its etag if it has one). KL_ECONFLICT: something else is
 * there. */
kl_rc kl__s3_document_put(kl__s3 *s3, const char *name, const kl__s3_document *old, const kl__s3_document *new_,
                          char ret_etag[KL_S3_ETAG_BYTES]);

/* --- names.c --- */

void kl__s3_encode_plainly(kl__s3_text *text, kl_bytes name); /* also the beginning of one; never in base32 */
char *kl__s3_record_object(const kl__s3 *s3, kl_bytes name);  /* its object, with the store's prefix. NULL: no memory */

/* Into room for as many bytes as it has characters. False: it is no name of ours. */
bool kl__s3_decode_name(const char *text, char *ret_bytes, size_t *ret_len);

/* --- bill.c --- */

void kl__s3_bill_save(kl__s3 *s3); /* puts this process's account into the bucket */

/* --- selftest.c --- */

/* KL_EINVAL: the server cannot do what we need, and the sentence says what. Sets s3->unquoted. */
kl_rc kl__s3_selftest(kl__s3 *s3);

/* With ?clock=caller: how far that clock has come, for the next life of the store. */
void kl__s3_save_floor(kl__s3 *s3);

/* --- tasks.c --- */

void kl__s3_sleep(kl__s3 *s3, int64_t wait_ms); /* or until the store is closed */

/* --- The calls --- */

kl_rc kl__s3_append(void *self, const kl_append *append);
kl_rc kl__s3_scan(void *self, kl_scan *scans, size_t count);
kl_rc kl__s3_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts);
kl_rc kl__s3_lines(void *self, uint32_t partition, uint32_t *ret_priorities);
kl_rc kl__s3_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen);
kl_rc kl__s3_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
kl_rc kl__s3_settle(void *self, kl_settle *batches, size_t count);
kl_rc kl__s3_fence(void *self, kl_fence *fences, size_t count);
kl_rc kl__s3_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                     kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
kl_rc kl__s3_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
kl_rc kl__s3_forget(void *self, kl_place place, const kl_task_id *ids, size_t count);
kl_rc kl__s3_take_in(void *self, const char *queue, int64_t wait_ms, size_t max, kl_take_fn *take, void *ctx,
                     size_t *ret_count);
kl_rc kl__s3_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records);
kl_rc kl__s3_put(void *self, kl_write *writes, size_t count);
kl_rc kl__s3_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                  size_t *ret_count);

#endif
