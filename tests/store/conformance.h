/* conformance.h - one suite that proves the contract of include/keyline/store.h for any store.
 *
 * A program is this suite and one file that defines `subject`: how to open a new, empty store, how to open it again,
 * and how to clear away what it leaves behind. Claims are registered like any test; each runs on a store of its own.
 *
 *     CLAIM(a_done_task_leaves_its_line) { ... t->store ... }
 *
 * What must survive a restart is checked inside BOTH_LIVES: once as it is, and once more after the store was closed and
 * opened again, where the subject is durable. Nothing here sleeps: waits are for events, with a limit that is never
 * reached while the promises hold. */
#ifndef TESTS_STORE_CONFORMANCE_H
#define TESTS_STORE_CONFORMANCE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "harness.h"
#include "keyline/keyline.h"
#include "keyline/store.h"
#include "store/check_rc.h"
#include "tally.h"

enum { PATIENCE_MS = 60000 };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A store under proof. */
struct subject {
    const char *name;
    bool clocked; /* its clock is opts.now_ms */
    bool trims;   /* it heeds opts.history_rows_max and opts.history_ms_max */

    /* A new, empty store. `place` is the subject's own, for the calls below. */
    kl_rc (*open)(const kl_store_opts *opts, void **ret_place, kl_store **ret_store);
    /* The same store again, after it was closed. NULL: it is not durable. */
    kl_rc (*reopen)(void *place, const kl_store_opts *opts, kl_store **ret_store);
    /* Removes what is left of a store that was closed. */
    void (*destroy)(void *place);
};

extern const struct subject subject;

/* One claim's store and what goes with it. */
struct trial {
    kl_store *store;
    void *place;
    kl_store_opts opts;
    uint32_t orders; /* a partition of 16 shards */
    uint32_t bills;  /* a partition of 256 shards */
    _Atomic int64_t clock_ms;
    kl_arena arena; /* for answers; lasts as long as the trial */
};

void run_trial(void (*claim)(struct trial *t));

#define CLAIM_IF(condition, name)                                                                                      \
    static void name(struct trial *t);                                                                                 \
    static void run_##name(void) { run_trial(name); }                                                                  \
    static struct test test_##name = {#name, run_##name, NULL};                                                        \
    __attribute__((constructor)) static void register_##name(void)                                                     \
    {                                                                                                                  \
        if (condition)                                                                                                 \
            test_register(&test_##name);                                                                               \
    }                                                                                                                  \
    static void name(struct trial *t)

#define CLAIM(name)         CLAIM_IF(true, name)
#define DURABLE_CLAIM(name) CLAIM_IF(subject.reopen != NULL, name)
#define CLOCK_CLAIM(name)   CLAIM_IF(subject.clocked, name)

/* Runs what follows once, and once more in the store's second life where it has one. */
#define BOTH_LIVES(t) for (int life_ = 0; life_ == 0 || (life_ == 1 && next_life(t)); life_++)

/* Closes the store and opens it again. False: it is not durable, or (a failure) it does not open. */
bool next_life(struct trial *t);

/* Drops the store and begins with a new one, under the trial's options as they are now. */
bool start_over(struct trial *t);

bool can(const struct trial *t, uint32_t what); /* KL_STORE_* */

/* ---- Checks ---- */

/* The call is refused with KL_EINVAL and a sentence of its own. */
#define CHECK_REFUSED(call)                                                                                            \
    do {                                                                                                               \
        forget_error();                                                                                                \
        CHECK_RC(call, KL_EINVAL);                                                                                     \
        if (!new_error())                                                                                              \
            test_fail(__FILE__, __LINE__, "%s is refused without a sentence", #call);                                  \
    } while (0)

void forget_error(void);
bool new_error(void);

#define CHECK_BYTES(actual, expected) check_bytes(actual, expected, #actual, __FILE__, __LINE__)

#define CHECK_ID(actual, expected)                                                                                     \
    do {                                                                                                               \
        kl_task_id actual_ = (actual), expected_ = (expected);                                                         \
        if (!same_id(&actual_, &expected_)) {                                                                          \
            char texts_[2][KL_ID_TEXT_BYTES];                                                                          \
            kl_id_print(&actual_, texts_[0]);                                                                          \
            kl_id_print(&expected_, texts_[1]);                                                                        \
            test_fail(__FILE__, __LINE__, "%s is %s, expected %s", #actual, texts_[0], texts_[1]);                     \
        }                                                                                                              \
    } while (0)

void check_bytes(kl_bytes actual, kl_bytes expected, const char *what, const char *file, int at);
bool same_bytes(kl_bytes a, kl_bytes b);
bool same_id(const kl_task_id *a, const kl_task_id *b);

/* For states that nobody signals. */
int64_t patience(void);
bool still(int64_t until_ns); /* yields the processor */

#define AWAIT(condition)                                                                                               \
    do {                                                                                                               \
        int64_t until_ = patience();                                                                                   \
        while (!(condition) && still(until_))                                                                          \
            ;                                                                                                          \
        if (!(condition))                                                                                              \
            test_fail(__FILE__, __LINE__, "waited in vain for %s", #condition);                                        \
    } while (0)

/* ---- Tasks ---- */

enum { NOWHERE = KL_LINE_RETRY + 1 };
#define START_MS INT64_C(1700000000000) /* where the injected clock begins */
#define KEEP_MS  INT64_C(86400000)

kl_place order_place(const struct trial *t, uint32_t shard);
kl_place bill_place(const struct trial *t, uint32_t shard);
kl_place whole(uint32_t partition);

/* An id of this shard, above all ids made before in it. Safe from any thread. */
kl_task_id make_id(const struct trial *t, kl_place place, kl_bytes key);
kl_token make_token(void);

/* An entry with a new id. The strings are not copied. */
kl_entry make_entry(const struct trial *t, kl_place place, const char *key, const char *payload);
void append(struct trial *t, const kl_entry *entries, size_t count);
kl_task_id append_one(struct trial *t, kl_place place, const char *payload);
void append_many(struct trial *t, kl_place place, kl_task_id *ret_ids, size_t count);

/* A line, read in pieces of this many; the stubs lie in the trial's arena. */
kl_stub *scan_pieces(struct trial *t, const kl_scan *scan, size_t piece, size_t *ret_count);
kl_stub *scan_line(struct trial *t, kl_place place, int32_t line, size_t *ret_count);

/* The line shows exactly these tasks in this order, with ascending positions unless it is the due line. */
void check_line(struct trial *t, kl_place place, int32_t line, const kl_task_id *ids, size_t count, const char *file,
                int at);
#define CHECK_LINE(t, place, line, ids, count) check_line(t, place, line, ids, count, __FILE__, __LINE__)

/* The line in which the task stands, and its stub; NOWHERE: in none. A task that stands in two fails the test. */
int32_t find_stub(struct trial *t, kl_place place, const kl_task_id *id, kl_stub *ret_stub);
kl_stub stub_of(struct trial *t, kl_place place, const kl_task_id *id);
int32_t line_of(struct trial *t, kl_place place, const kl_task_id *id);

/* The next attempt of a waiting task has ended so; nothing is kept. */
kl_settled outcome_of(struct trial *t, kl_place place, const kl_task_id *id, kl_outcome outcome);
kl_settled next_attempt(const kl_stub *stub, kl_outcome outcome);

/* One batch. Checks that the call's rc is the batch's. */
kl_rc settle(struct trial *t, kl_place place, uint64_t epoch, const kl_settled *tasks, size_t count);
void finish(struct trial *t, kl_place place, const kl_task_id *id, kl_outcome outcome, int64_t keep_ms,
            const char *error, const char *result);
kl_rc fence(struct trial *t, kl_place place, uint64_t epoch);
kl_rc seal(struct trial *t, kl_place place, uint64_t epoch);

kl_task read_one(struct trial *t, kl_place place, const kl_task_id *id);
kl_task_state state_of(struct trial *t, kl_place place, const kl_task_id *id);
kl_counts counts_of(struct trial *t, kl_place place);
kl_counts job_counts_of(struct trial *t, uint32_t partition, const kl_task_id *job);

/* Every field of what was appended. */
void check_entry(const kl_entry *actual, const kl_entry *expected, const char *file, int at);
#define CHECK_ENTRY(actual, expected) check_entry(actual, expected, __FILE__, __LINE__)

/* ---- Records ---- */

kl_record get_record(struct trial *t, const char *name);
kl_rc put_record(struct trial *t, const char *name, uint64_t version, const char *value, uint64_t *ret_version);

#endif
