/* support.h - what the executor's tests share: gates, a journal, a clock that stands still, and tasks with a script.
 *
 * Nothing here sleeps. Every wait is for an event and has a limit only so that a broken executor fails a test instead
 * of hanging it: no limit is ever reached while the promises hold. */
#ifndef TESTS_EXEC_SUPPORT_H
#define TESTS_EXEC_SUPPORT_H

#include <pthread.h>
#include <stdatomic.h>

#include "exec/internal.h"
#include "harness.h"
#include "tally.h"

enum { PATIENCE_MS = 30000, MS = 1000000 };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A gate holds whoever comes until it is opened. */
struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int here; /* how many wait in front of it */
    bool open;
};

#define GATE                                                                                                           \
    {                                                                                                                  \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false                                                  \
    }

bool gate_pass(struct gate *gate);              /* waits until it is open */
void gate_open(struct gate *gate);              /* for good */
void gate_await(struct gate *gate, int number); /* until that many stand in front of it */

/* The journal of the running test: words, in the order in which they happened. */
void journal_clear(void);
void journal_add(const char *format, ...) __attribute__((format(printf, 1, 2)));
void journal_await(int words);
const char *journal_text(void); /* a copy, valid until the next call */

/* Opens with room for the test's options. Threads default to 2 here, shards to 1 and the capacity to 1024. `frozen`
 * uses a clock that only pass_ms and pass_ns move. Each fails the test and returns NULL when the executor does not
 * open. */
kl_exec *open_exec(kl_exec_opts opts);
kl_exec *open_frozen(kl_exec_opts opts);
void pass_ms(kl_exec *exec, int64_t ms);
void pass_ns(kl_exec *exec, int64_t ns);

/* Called by whoever reads that clock, after it was read and before the time is used; NULL: nobody. */
extern _Atomic(void (*)(void)) on_clock;

#define OPTS(...) ((kl_exec_opts){.size = sizeof(kl_exec_opts), __VA_ARGS__})
#define TASK(...) (&(kl_exec_task_opts){.size = sizeof(kl_exec_task_opts), __VA_ARGS__})

/* A task that writes its name into the journal and then does what its plan says: one letter per attempt, the last one
 * for all that follow.
 *
 *      d done   r retry   x dead   c KL_CANCELLED   e pthread_exit   k is cancelled by pthread_cancel
 *
 * With a gate it waits there first, before it writes anything. */
struct script {
    const char *name;
    const char *plan;
    struct gate *gate;
    const char *error;  /* text of its failures */
    int64_t after_ms;   /* > 0: kl_run_retry_after */
    bool heed;          /* writes "name!" when it was asked to stop */
    bool tell_attempts; /* writes "name1", "name2", ... */
};

kl_outcome play(kl_run *run, void *script);
kl_outcome note(kl_run *run, void *name); /* writes its name and is done */
kl_outcome hold(kl_run *run, void *gate); /* passes the gate and is done */
kl_outcome nothing(kl_run *run, void *ctx);
kl_outcome add_one(kl_run *run, void *tally);

/* Reports for the journal: "name=KL_OK/1", with the number of attempts and, if there is one, "(error)". The context is
 * the name. */
void note_end(void *name, const kl_exec_end *end);

/* Submit, and fail the test if it does not work. */
kl_exec_id submit(kl_exec *exec, const char *key, kl_task_fn *fn, void *ctx, const kl_exec_task_opts *opts);
kl_exec_id submit_note(kl_exec *exec, const char *key, const char *name);
kl_exec_id submit_script(kl_exec *exec, const char *key, struct script *script, const kl_exec_task_opts *opts);

/* Waiting for what an executor shows: the state of a task or a key, the end of a task, and an answer from a
 * function. */
void await_state(kl_exec *exec, kl_exec_id id, kl_exec_state state);
void await_key(kl_exec *exec, const char *key, kl_key_state state);
void await_gone(kl_exec *exec, kl_exec_id id);
kl_exec_status status_of(kl_exec *exec, kl_exec_id id);
kl_key_info info_of(kl_exec *exec, const char *key);
/* Of all shards: tasks that have not ended, and places that are taken, which those that wait for a retry may not. */
uint64_t tasks_live(kl_exec *exec);
uint64_t places_taken(kl_exec *exec);

/* Lets every thread run enough short tasks for its hands to grow. */
void grow_hands(kl_exec *exec);

/* Another thread of the test. */
struct helper {
    pthread_t id;
    void (*run)(void *ctx);
    void *ctx;
};

void helper_start(struct helper *helper, void (*run)(void *ctx), void *ctx);
void helper_join(struct helper *helper);

/* A moment PATIENCE_MS ahead, and whether it has passed; yields the processor. For loops that wait for a state which
 * nobody signals. */
int64_t patience(void);
bool still(int64_t until_ns);

#define AWAIT(condition)                                                                                               \
    do {                                                                                                               \
        int64_t until_ = patience();                                                                                   \
        while (!(condition) && still(until_))                                                                          \
            ;                                                                                                          \
        if (!(condition))                                                                                              \
            test_fail(__FILE__, __LINE__, "waited in vain for %s", #condition);                                        \
    } while (0)

/* --- Seams that the linker puts in (tests/meson.build: --wrap) --- */

/* Memory of the library that is in use, in pieces. */
int64_t live_pieces(void);

/* All that was ever taken, in bytes. */
int64_t bytes_taken(void);

/* After `spared` more threads have been started, the next `number` starts fail with this error. */
void fail_threads(int spared, int number, int error);

/* Called by a thread that has taken tasks, with the shard's mutex held, before others can see it; NULL: nobody. */
extern _Atomic(void (*)(kl__lane_task **tasks, uint32_t count)) on_take;

/* A time of the thread's own, while it is on: its monotonic clock shows now_ns, a yield takes yield_ns, and a wait with
 * a limit is over at once, when that has come. `meanwhile` is called in the middle of each wait, without its mutex. If
 * it waits_really it does by the real clock; then, where now_ns is far ahead, only a signal ends a wait in time. */
struct own_time {
    bool is_on, waits_really;
    int64_t now_ns;
    int64_t yield_ns;
    int yields;
    void (*meanwhile)(void *ctx);
    void *ctx;
};

extern _Thread_local struct own_time own_time;

/* How many barriers have found something to wait for; set to 0 by tests that look at it. */
extern atomic_int barriers_waiting;

/* A machine may have so many processors that a set of them takes so many bytes: with less the call fails. */
extern size_t affinity_bytes;

/* While set, membarrier(2) is refused, as by a sandbox. */
extern atomic_bool membarrier_fails;

/* Called by who is about to report a task, with no mutex held; NULL: nobody. */
extern _Atomic(void (*)(void)) on_report;

/* Called with a thread's own id before it detaches itself, and before a thread is joined; NULL: nobody. */
extern _Atomic(void (*)(pthread_t)) on_detach, on_join;

#endif
