/* support.c - see support.h. */
#include "exec/support.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>

#include "base/wait.h"

enum { JOURNAL_BYTES = 1 << 16 };

int64_t patience(void) { return kl__deadline_ns(PATIENCE_MS); }

bool still(int64_t until_ns)
{
    sched_yield();
    return kl__monotonic_ns() < until_ns;
}

/* --- Gates and tallies --- */

/* The mutex is released when a task that waits here is cancelled. */
static void unlock(void *mutex) { pthread_mutex_unlock(mutex); }

static bool wait_change(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t left_ns = until_ns - kl__monotonic_ns();
    if (left_ns <= 0)
        return false;
    int64_t ns = until.tv_nsec + left_ns;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    return pthread_cond_timedwait(cond, mutex, &until) != ETIMEDOUT;
}

bool gate_pass(struct gate *gate)
{
    int64_t until = patience();
    bool open;
    pthread_mutex_lock(&gate->mutex);
    pthread_cleanup_push(unlock, &gate->mutex);
    gate->here++;
    pthread_cond_broadcast(&gate->changed);
    while (!gate->open && wait_change(&gate->changed, &gate->mutex, until))
        ;
    gate->here--;
    open = gate->open;
    pthread_cleanup_pop(1);
    if (!open)
        test_fail(__FILE__, __LINE__, "a gate was not opened");
    return open;
}

void gate_open(struct gate *gate)
{
    pthread_mutex_lock(&gate->mutex);
    gate->open = true;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->mutex);
}

void gate_await(struct gate *gate, int number)
{
    int64_t until = patience();
    pthread_mutex_lock(&gate->mutex);
    while (gate->here < number && wait_change(&gate->changed, &gate->mutex, until))
        ;
    if (gate->here < number)
        test_fail(__FILE__, __LINE__, "%d instead of %d came to a gate", gate->here, number);
    pthread_mutex_unlock(&gate->mutex);
}

/* --- The journal --- */

static struct {
    struct tally words;
    size_t length;
    char text[JOURNAL_BYTES];
} journal = {.words = TALLY};

void journal_clear(void)
{
    pthread_mutex_lock(&journal.words.mutex);
    journal.words.value = 0;
    journal.length = 0;
    journal.text[0] = '\0';
    pthread_mutex_unlock(&journal.words.mutex);
}

void journal_add(const char *format, ...)
{
    va_list arguments;
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_mutex_lock(&journal.words.mutex);
    size_t room = sizeof journal.text - journal.length;
    if (room > 2 && journal.length > 0) {
        journal.text[journal.length++] = ' ';
        room--;
    }
    va_start(arguments, format);
    int length = vsnprintf(journal.text + journal.length, room, format, arguments);
    va_end(arguments);
    journal.length += length < (int)room ? (size_t)length : room - 1;
    journal.words.value++;
    pthread_cond_broadcast(&journal.words.changed);
    pthread_mutex_unlock(&journal.words.mutex);
    pthread_setcancelstate(state, NULL);
}

void journal_await(int words) { tally_await(&journal.words, words); }

const char *journal_text(void)
{
    static _Thread_local char copy[JOURNAL_BYTES];
    pthread_mutex_lock(&journal.words.mutex);
    memcpy(copy, journal.text, journal.length + 1);
    pthread_mutex_unlock(&journal.words.mutex);
    return copy;
}

/* --- Opening --- */

static _Atomic(int64_t) frozen_ns;

_Atomic(void (*)(void)) on_clock;

static int64_t read_frozen(void *ctx)
{
    (void)ctx;
    int64_t now_ns = atomic_load(&frozen_ns);
    void (*call)(void) = atomic_load(&on_clock);
    if (call)
        call();
    return now_ns;
}

static kl_exec *open_clocked(kl_exec_opts opts, const kl__clock *clock)
{
    kl_exec *exec = NULL;
    if (!opts.threads)
        opts.threads = 2;
    if (!opts.shards)
        opts.shards = 1;
    if (!opts.shard_capacity)
        opts.shard_capacity = 1024;
    journal_clear();
    if (kl__exec_open_with(&opts, clock, &exec) != KL_OK)
        test_fail(__FILE__, __LINE__, "the executor did not open: %s", kl_error_text());
    return exec;
}

kl_exec *open_exec(kl_exec_opts opts) { return open_clocked(opts, NULL); }

kl_exec *open_frozen(kl_exec_opts opts)
{
    kl__clock clock = {read_frozen, NULL};
    atomic_store(&frozen_ns, INT64_C(1000000) * MS);
    return open_clocked(opts, &clock);
}

void pass_ns(kl_exec *exec, int64_t ns)
{
    atomic_fetch_add(&frozen_ns, ns);
    kl__exec_wake_all(exec);
}

void pass_ms(kl_exec *exec, int64_t ms) { pass_ns(exec, ms * MS); }

/* --- Tasks --- */

kl_outcome play(kl_run *run, void *ctx)
{
    struct script *script = ctx;
    uint32_t attempt = kl_run_attempt(run), last = (uint32_t)strlen(script->plan);
    if (script->gate)
        gate_pass(script->gate);
    if (script->tell_attempts)
        journal_add("%s%u", script->name, attempt);
    else
        journal_add("%s", script->name);
    if (script->heed && kl_run_cancelled(run))
        journal_add("%s!", script->name);
    if (script->error)
        kl_run_error(run, "%s", script->error);
    if (script->after_ms > 0)
        kl_run_retry_after(run, script->after_ms);
    switch (script->plan[(attempt < last ? attempt : last) - 1]) {
    case 'r':
        return KL_RETRY;
    case 'x':
        return KL_DEAD;
    case 'c':
        return KL_CANCELLED;
    case 'e':
        pthread_exit(NULL);
    case 'k':
        pthread_cancel(pthread_self());
        pthread_testcancel();
        return KL_DEAD;
    default:
        return KL_DONE;
    }
}

kl_outcome note(kl_run *run, void *name)
{
    (void)run;
    journal_add("%s", (const char *)name);
    return KL_DONE;
}

kl_outcome hold(kl_run *run, void *gate)
{
    (void)run;
    gate_pass(gate);
    return KL_DONE;
}

kl_outcome nothing(kl_run *run, void *ctx)
{
    (void)run, (void)ctx;
    return KL_DONE;
}

kl_outcome add_one(kl_run *run, void *tally)
{
    (void)run;
    tally_add(tally, 1);
    return KL_DONE;
}

void note_end(void *name, const kl_exec_end *end)
{
    if (end->error[0])
        journal_add("%s=%s/%u(%s)", (const char *)name, kl_rc_name(end->rc), end->attempts, end->error);
    else
        journal_add("%s=%s/%u", (const char *)name, kl_rc_name(end->rc), end->attempts);
}

kl_exec_id submit(kl_exec *exec, const char *key, kl_task_fn *fn, void *ctx, const kl_exec_task_opts *opts)
{
    kl_exec_id id = 0;
    kl_rc rc = kl_exec_submit(exec, kl_str(key), fn, ctx, opts, &id);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "submit for '%s' returned %s: %s", key, kl_rc_name(rc), kl_error_text());
    return id;
}

kl_exec_id submit_note(kl_exec *exec, const char *key, const char *name)
{
    return submit(exec, key, note, (void *)(uintptr_t)name, NULL);
}

kl_exec_id submit_script(kl_exec *exec, const char *key, struct script *script, const kl_exec_task_opts *opts)
{
    return submit(exec, key, play, script, opts);
}

/* --- Looking --- */

kl_exec_status status_of(kl_exec *exec, kl_exec_id id)
{
    kl_exec_status status = {.due_in_ms = -1};
    if (kl_exec_status_of(exec, id, &status) != KL_OK)
        test_fail(__FILE__, __LINE__, "no status: %s", kl_error_text());
    return status;
}

kl_key_info info_of(kl_exec *exec, const char *key)
{
    kl_key_info info = {.due_in_ms = -1};
    if (kl_exec_key_show(exec, kl_str(key), &info) != KL_OK)
        test_fail(__FILE__, __LINE__, "key '%s' is not shown: %s", key, kl_error_text());
    return info;
}

uint64_t tasks_live(kl_exec *exec)
{
    uint64_t live = 0;
    for (uint32_t i = 0; i < exec->shard_count; i++) {
        uint64_t ended = atomic_load(&exec->shards[i].inbox.ended); /* first: it never passes the tail */
        live += kl__inbox_claimed(&exec->shards[i].inbox) - ended;
    }
    return live;
}

uint64_t places_taken(kl_exec *exec)
{
    uint64_t taken = 0;
    for (uint32_t i = 0; i < exec->shard_count; i++)
        taken += kl__inbox_length(&exec->shards[i].inbox);
    return taken;
}

void await_state(kl_exec *exec, kl_exec_id id, kl_exec_state state)
{
    kl_exec_status status;
    AWAIT(kl_exec_status_of(exec, id, &status) == KL_OK && status.state == state);
}

void await_key(kl_exec *exec, const char *key, kl_key_state state) { AWAIT(info_of(exec, key).state == state); }

void await_gone(kl_exec *exec, kl_exec_id id)
{
    kl_exec_status status;
    AWAIT(kl_exec_status_of(exec, id, &status) == KL_ENOTFOUND);
}

static void *helper_main(void *argument)
{
    struct helper *helper = argument;
    helper->run(helper->ctx);
    return NULL;
}

void helper_start(struct helper *helper, void (*run)(void *ctx), void *ctx)
{
    helper->run = run;
    helper->ctx = ctx;
    if (pthread_create(&helper->id, NULL, helper_main, helper) != 0)
        abort();
}

void helper_join(struct helper *helper) { pthread_join(helper->id, NULL); }

/* --- Hands --- */

void grow_hands(kl_exec *exec)
{
    for (int i = 0; i < 8; i++) {
        struct gate gate = GATE;
        for (uint32_t t = 0; t < exec->thread_count; t++)
            submit(exec, "", hold, &gate, NULL);
        gate_await(&gate, (int)exec->thread_count);
        gate_open(&gate);
        AWAIT(tasks_live(exec) == 0);
    }
}
