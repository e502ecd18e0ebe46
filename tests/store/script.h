/* script.h - a run of store calls made from a seed, and a model that knows what a store must hold after each of them.
 *
 * The calls are made up in advance: they depend on the seed alone. What only the store can tell (positions,
 * versions) is learned as it goes. A call is made of steps, each of which happens whole or not at all; a store that
 * was cut off in a call may stand behind any of its steps.
 *
 *      script.c         makes the calls, and applies them to a model
 *      script_run.c     makes a call to a store
 *      script_view.c    looks at everything a store holds, and compares that with models
 *      script_inspect.c looks at what a damaged store still shows */
#ifndef TESTS_SCRIPT_H
#define TESTS_SCRIPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keyline/store.h"

enum {
    SCRIPT_CALLS_MAX = 1024,
    SCRIPT_TASKS_MAX = 2048,
    SCRIPT_ITEMS_MAX = 4096,
    SCRIPT_RECORDS = 10,
    SCRIPT_PARTITIONS = 3,
    SCRIPT_SHARDS = 2, /* of each partition that are used */
    SCRIPT_PLACES = SCRIPT_PARTITIONS * SCRIPT_SHARDS,
    SCRIPT_JOBS = 3,
    SCRIPT_STEPS_MAX = 4,
    SCRIPT_HISTORY_ROWS = 40,
    SCRIPT_WHY_BYTES = 600,
};

#define SCRIPT_START_MS INT64_C(1700000000000)

enum call_kind { CALL_PARTITION, CALL_APPEND, CALL_SETTLE, CALL_FENCE, CALL_PUT, CALL_FORGET, CALL_REOPEN };

/* What came of one task. */
struct script_item {
    uint32_t task;
    kl_outcome outcome;
    uint32_t attempts;
    int64_t due_ms, keep_ms;
    kl_bytes error, result;
};

/* One step of a settle, fence, put or forget. */
struct script_step {
    uint32_t place;             /* SETTLE, FENCE */
    uint64_t epoch;             /* likewise */
    bool seal;                  /* FENCE */
    bool stale;                 /* it must be refused */
    uint32_t first_item, items; /* SETTLE */
    uint32_t record;            /* PUT */
    bool remove;
    kl_bytes value;
    int64_t expires_ms;
    uint32_t task; /* FORGET */
};

struct script_call {
    enum call_kind kind;
    int64_t now_ms;         /* the clock during the call */
    uint32_t first, count;  /* APPEND: tasks; PARTITION: first is its index */
    bool has_token, repeat; /* APPEND: the same call was made before, and has no effect */
    kl_token token;
    uint32_t step_count;
    struct script_step steps[SCRIPT_STEPS_MAX];
};

struct script_task {
    kl_entry entry;
    uint32_t place;
};

struct script {
    uint64_t seed;
    uint32_t call_count, task_count, item_count;
    struct script_call calls[SCRIPT_CALLS_MAX];
    struct script_task tasks[SCRIPT_TASKS_MAX];
    struct script_item items[SCRIPT_ITEMS_MAX];
    kl_task_id jobs[SCRIPT_JOBS];
    kl_place places[SCRIPT_PLACES];
    uint8_t *noise; /* where all bytes come from */
};

enum { NO_ITEM = UINT32_MAX };

struct model_task {
    uint8_t state;   /* kl_task_state; UNKNOWN: never appended, or gone */
    bool tried;      /* stands in the retry line */
    bool maybe_gone; /* finished, and by now expired or over the most that are kept: it may be there or not */
    uint32_t attempts;
    uint32_t error, result; /* items, or NO_ITEM */
    int64_t not_before_ms, finished_ms, expires_ms;
    uint64_t position; /* 0: not learned yet */
};

struct model_record {
    bool there;
    kl_bytes value;
    int64_t expires_ms;
    uint64_t version; /* 0: not learned yet */
};

/* What a store must hold. A plain value: copy it freely. */
struct model {
    int64_t now_ms;
    bool partitions[SCRIPT_PARTITIONS];
    uint64_t epochs[SCRIPT_PLACES];
    bool seals[SCRIPT_PLACES];
    struct model_record records[SCRIPT_RECORDS];
    uint32_t task_count; /* tasks[i] for i beyond are UNKNOWN */
    struct model_task tasks[SCRIPT_TASKS_MAX];
};

/* At most `calls` calls, and never more than SCRIPT_CALLS_MAX. */
struct script *script_make(uint64_t seed, uint32_t calls);
void script_free(struct script *script);

uint32_t script_steps(const struct script_call *call);
bool script_can_be_sealed(uint32_t place); /* every second one, so that there is always one to append to */
kl_bytes script_record_name(uint32_t record);
const char *script_partition_name(uint32_t partition);
/* A task that no call makes: a look at the store appends it, to see whether the place is sealed, and settles it. */
kl_task_id script_nobody(const struct script *script, uint32_t place);
bool script_is_nobody(const kl_task_id *id);
/* The task that bears the id, or SCRIPT_TASKS_MAX. */
uint32_t script_find(const struct script *script, const kl_task_id *id);
/* One line about call `number`. */
void script_describe(const struct script *script, uint32_t number, char *ret_text, size_t size);

/* A call begins: time moves on, and what that makes old. Then each of its steps. */
void model_begin(const struct script *script, struct model *model, const struct script_call *call);
void model_step(const struct script *script, struct model *model, const struct script_call *call, uint32_t step);
void model_call(const struct script *script, struct model *model, const struct script_call *call); /* all of it */
bool model_record_there(const struct model *model, uint32_t record);                               /* and not expired */

/* ---- Making the calls ---- */

/* A store that calls are made to. Zero it, and set the first three. */
struct subject {
    const struct script *script;
    kl_rc (*open)(void *ctx, const kl_store_opts *opts, kl_store **ret_store);
    void *ctx;
    kl_store *store;
    bool partitions[SCRIPT_PARTITIONS]; /* known to have been made: open must find them */
    _Atomic int64_t clock_ms;
    char why[SCRIPT_WHY_BYTES];
};

/* Opens with the script's options and the subject's clock. KL_EDEAD: it opens, but a partition is not there. */
kl_rc subject_open(struct subject *subject);
void subject_close(struct subject *subject);

/* Makes the call, as one who knows what the model holds before it; learns positions and versions into `after`, which
 * is the model after it. KL_OK: it did what it should. KL_EINVAL: it did something else, and `why` says what.
 * Anything else is what the store returned. */
kl_rc subject_call(struct subject *subject, const struct model *before, struct model *after,
                   const struct script_call *call);

/* Looks at everything in the store and compares it with each of the models in turn. The first that it equals, or -1
 * and `why` tells the difference from the last one, or what is wrong with any. `random` chooses what is looked at in
 * samples. */
int subject_compare(struct subject *subject, const struct model *models, int count, uint64_t random);

/* For damaged stores: whatever is shown must be right. What is not shown and should be is counted as missing, what
 * is refused as damaged (KL_EDAMAGED) as refused. False: something else is wrong, and `why` says what. */
struct inspection {
    uint64_t missing, refused;
};
bool subject_inspect(struct subject *subject, const struct model *model, struct inspection *ret_found);

#endif
