/* executor.c - opening an executor and closing it, and what its files say of wrong arguments. */
#include "exec/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "base/random.h"
#include "base/text.h"
#include "base/wait.h"
#include "exec/hand.h"

enum { LOG_LINE_BYTES = 512 };
enum { DEAR_NS_MIN = 500000, DEAR_NS_MAX = 3000000, DEAR_PLACE_NS = 100 };
enum { GATHER_SHARE = 32, GATHER_MAX = 256 }; /* one place of so many in a shard, or so many, are worth waiting for */

_Thread_local const kl__inside *kl__innermost;

void kl__exec_log(const kl_exec *exec, kl_log_level level, const char *format, ...)
{
    if (!exec->opts.log)
        return;
    char line[LOG_LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' '; /* keys and error texts may hold anything; a line stays a line */
    exec->opts.log(exec->opts.log_ctx, level, line);
}

/* --- Opening --- */

static uint32_t bits_for(uint32_t count)
{
    uint32_t bits = 0;
    while ((UINT64_C(1) << bits) < count)
        bits++;
    return bits;
}

static kl_rc start_threads(kl_exec *exec)
{
    pthread_sigmask(SIG_SETMASK, NULL, &exec->signals);
    for (uint32_t i = 0; i < exec->thread_count; i++) {
        kl__exec_thread *thread = &exec->threads[i];
        thread->exec = exec;
        thread->hand_size = 1;
        uint64_t shards = exec->shard_count, threads = exec->thread_count;
        thread->home = (uint32_t)(i * shards / threads);
        thread->homes = (uint32_t)((i + 1) * shards / threads) - thread->home;
        kl__cond_init(&thread->wake);
        int error = pthread_create(&thread->id, NULL, kl__thread_main, thread);
        if (error) {
            pthread_cond_destroy(&thread->wake);
            return kl__fail(KL_ESYSTEM, "thread %u of %lld could not be started (%s); ask for fewer threads", i + 1,
                            (long long)exec->opts.threads, strerror(error));
        }
        exec->started++;
    }
    return KL_OK;
}

static kl_rc build(kl_exec *exec, const kl__clock *clock)
{
    exec->clock = clock ? *clock : (kl__clock){NULL, NULL};
    exec->opened_ms = kl__exec_now_ms(exec);
    atomic_init(&exec->hand_most, kl__hand_most());
    exec->mark = (kl__lane_mark){.attempts_max = (uint16_t)exec->opts.attempts_max};
    int64_t turn_ns = DEAR_NS_MIN + DEAR_PLACE_NS * exec->opts.shards * exec->opts.shard_capacity;
    exec->dear_ns = turn_ns < DEAR_NS_MAX ? turn_ns : DEAR_NS_MAX;
    int64_t share = exec->opts.shard_capacity / GATHER_SHARE;
    exec->gather_tasks = kl__cores() == 1 ? 0 : share < GATHER_MAX ? share : GATHER_MAX; /* on one they would not */
    exec->shard_bits = bits_for((uint32_t)exec->opts.shards);
    atomic_init(&exec->random, kl__random_seed());
    pthread_mutex_init(&exec->park_mutex, NULL);
    kl__cond_init(&exec->all_ended);
    exec->shards = kl__alloc_aligned(KL_CACHE_LINE, (size_t)exec->opts.shards, sizeof *exec->shards);
    exec->threads = kl__alloc_aligned(KL_CACHE_LINE, (size_t)exec->opts.threads, sizeof *exec->threads);
    if (!exec->shards || !exec->threads)
        return kl__fail_memory();
    for (; exec->shard_count < (uint32_t)exec->opts.shards; exec->shard_count++) {
        kl_rc rc = kl__shard_open(&exec->shards[exec->shard_count], exec, exec->shard_count);
        if (rc != KL_OK)
            return rc;
    }
    exec->index_bits = bits_for(exec->shards[0].task_count + 1);
    exec->thread_count = (uint32_t)exec->opts.threads;
    return start_threads(exec);
}

kl_rc kl__exec_open_with(const kl_exec_opts *opts, const kl__clock *clock, kl_exec **ret_exec)
{
    kl_exec_opts complete;
    kl_rc rc = kl__exec_opts_complete(opts, &complete);
    if (rc != KL_OK)
        return rc;
    kl_exec *exec = kl__alloc_aligned(KL_CACHE_LINE, 1, sizeof *exec);
    if (!exec)
        return kl__fail_memory();
    exec->opts = complete;
    rc = build(exec, clock);
    if (rc != KL_OK) {
        kl_exec_close(exec);
        return rc;
    }
    *ret_exec = exec;
    return KL_OK;
}

kl_rc kl_exec_open(const kl_exec_opts *opts, kl_exec **ret_exec)
{
    if (!ret_exec)
        return kl__exec_fail_null("kl_exec_open", "ret_exec");
    return kl__exec_open_with(opts, NULL, ret_exec);
}

void kl_exec_close(kl_exec *exec)
{
    if (!exec)
        return;
    KL_ASSERT(!kl__is_inside(exec));
    if (exec->started > 0)
        kl_exec_abort(exec);
    for (uint32_t i = 0; i < exec->started; i++) {
        pthread_mutex_lock(&exec->park_mutex);
        while (exec->threads[i].replacing)
            kl__cond_wait(&exec->all_ended, &exec->park_mutex, KL_NEVER);
        pthread_t id = exec->threads[i].id;
        bool gone = exec->threads[i].gone;
        pthread_mutex_unlock(&exec->park_mutex);
        if (!gone)
            pthread_join(id, NULL);
        pthread_cond_destroy(&exec->threads[i].wake);
    }
    for (uint32_t i = 0; i < exec->shard_count; i++)
        kl__shard_close(&exec->shards[i]);
    pthread_cond_destroy(&exec->all_ended);
    pthread_mutex_destroy(&exec->park_mutex);
    kl__free(exec->threads);
    kl__free(exec->shards);
    kl__free(exec);
}

/* --- Checking --- */

kl_rc kl__exec_fail_null(const char *call, const char *argument)
{
    return kl__fail(KL_EINVAL, "%s: %s is NULL; pass %s", call, argument,
                    strcmp(argument, "exec") == 0 ? "an executor that kl_exec_open has opened"
                                                  : "the address of what is to be read or set");
}

kl_rc kl__exec_check_key(kl_bytes key)
{
    if (key.len > 0 && !key.data)
        return kl__fail(KL_EINVAL, "the key has a length of %zu but no bytes; pass both, or neither for no key",
                        key.len);
    if (KL_LIKELY(key.len <= KL_KEY_BYTES_MAX))
        return KL_OK;
    return kl__fail(KL_EINVAL, "the key has %zu bytes and may have %d; use a hash of it, or a shorter name", key.len,
                    KL_KEY_BYTES_MAX);
}
