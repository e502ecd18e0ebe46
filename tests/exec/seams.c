/* seams.c - functions that the linker puts between the library's files and what they call (see tests/meson.build), so
 * that a test can count memory, refuse a thread, and stop a thread at the one instruction where a race is lost. */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "exec/support.h"

void *__real_kl__alloc(size_t size);
void *__real_kl__alloc_zeroed(size_t count, size_t size);
void *__real_kl__alloc_aligned(size_t alignment, size_t count, size_t size);
void __real_kl__free(void *memory);
int __real_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int __real_pthread_detach(pthread_t id);
int __real_pthread_join(pthread_t id, void **ret_value);
int __real_clock_gettime(clockid_t clock, struct timespec *ret_now);
int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int __real_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *ret_set);
int __real_sched_yield(void);
long __real_syscall(long number, ...);
uint32_t __real_kl__shard_take(kl__shard *shard, kl__lane_task **ret_tasks, uint32_t most, int64_t *now_ns);
uint32_t __real_kl__shard_start(kl__shard *shard, kl__lane_task **ret_tasks, uint32_t most, int64_t *now_ns);
void __real_kl__exec_report(kl__shard *shard, kl__exec_task *task, kl_outcome outcome, kl_rc rc, const char *error);
bool __real_kl__lanes_await(kl__lanes *lanes, const kl__lane_key *key, kl__lane_barrier *barrier);

void *__wrap_kl__alloc(size_t size);
void *__wrap_kl__alloc_zeroed(size_t count, size_t size);
void *__wrap_kl__alloc_aligned(size_t alignment, size_t count, size_t size);
void __wrap_kl__free(void *memory);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int __wrap_pthread_detach(pthread_t id);
int __wrap_pthread_join(pthread_t id, void **ret_value);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_now);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *ret_set);
int __wrap_sched_yield(void);
long __wrap_syscall(long number, ...);
uint32_t __wrap_kl__shard_take(kl__shard *shard, kl__lane_task **ret_tasks, uint32_t most, int64_t *now_ns);
uint32_t __wrap_kl__shard_start(kl__shard *shard, kl__lane_task **ret_tasks, uint32_t most, int64_t *now_ns);
void __wrap_kl__exec_report(kl__shard *shard, kl__exec_task *task, kl_outcome outcome, kl_rc rc, const char *error);
bool __wrap_kl__lanes_await(kl__lanes *lanes, const kl__lane_key *key, kl__lane_barrier *barrier);

enum { SECOND_NS = 1000 * MS };

static _Atomic(int64_t) pieces, bytes;
static atomic_int threads_to_spare, threads_to_fail, thread_error;

atomic_int barriers_waiting;
atomic_bool membarrier_fails;
_Atomic(void (*)(kl__lane_task **, uint32_t)) on_take;
_Atomic(void (*)(void)) on_report;
_Atomic(void (*)(pthread_t)) on_detach, on_join;

int64_t live_pieces(void) { return atomic_load(&pieces); }
int64_t bytes_taken(void) { return atomic_load(&bytes); }

static void *count_in(void *memory, size_t size)
{
    if (memory) {
        atomic_fetch_add(&pieces, 1);
        atomic_fetch_add(&bytes, (int64_t)size);
    }
    return memory;
}

void *__wrap_kl__alloc(size_t size) { return count_in(__real_kl__alloc(size), size); }

void *__wrap_kl__alloc_zeroed(size_t count, size_t size)
{
    return count_in(__real_kl__alloc_zeroed(count, size), count * size);
}

void *__wrap_kl__alloc_aligned(size_t alignment, size_t count, size_t size)
{
    return count_in(__real_kl__alloc_aligned(alignment, count, size), count * size);
}

void __wrap_kl__free(void *memory)
{
    if (memory)
        atomic_fetch_sub(&pieces, 1);
    __real_kl__free(memory);
}

void fail_threads(int spared, int number, int error)
{
    atomic_store(&threads_to_spare, spared);
    atomic_store(&thread_error, error);
    atomic_store(&threads_to_fail, number);
}

int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    if (atomic_load(&threads_to_fail) > 0 && atomic_fetch_sub(&threads_to_spare, 1) <= 0) {
        atomic_fetch_sub(&threads_to_fail, 1);
        return atomic_load(&thread_error);
    }
    return __real_pthread_create(id, attributes, start, argument);
}

int __wrap_pthread_detach(pthread_t id)
{
    void (*call)(pthread_t) = atomic_load(&on_detach);
    if (call)
        call(id);
    return __real_pthread_detach(id);
}

int __wrap_pthread_join(pthread_t id, void **ret_value)
{
    void (*call)(pthread_t) = atomic_load(&on_join);
    if (call)
        call(id);
    return __real_pthread_join(id, ret_value);
}

_Thread_local struct own_time own_time;

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_now)
{
    if (!own_time.is_on || clock != CLOCK_MONOTONIC)
        return __real_clock_gettime(clock, ret_now);
    *ret_now = (struct timespec){.tv_sec = own_time.now_ns / SECOND_NS, .tv_nsec = own_time.now_ns % SECOND_NS};
    return 0;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    if (!own_time.is_on || own_time.waits_really)
        return __real_pthread_cond_timedwait(cond, mutex, until);
    int64_t until_ns = until->tv_sec * SECOND_NS + until->tv_nsec;
    if (own_time.meanwhile) {
        pthread_mutex_unlock(mutex);
        own_time.is_on = false;
        own_time.meanwhile(own_time.ctx);
        own_time.is_on = true;
        pthread_mutex_lock(mutex);
    }
    if (own_time.now_ns < until_ns)
        own_time.now_ns = until_ns;
    return ETIMEDOUT;
}

size_t affinity_bytes;

int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *ret_set)
{
    if (size >= affinity_bytes)
        return __real_sched_getaffinity(pid, size, ret_set);
    errno = EINVAL;
    return -1;
}

int __wrap_sched_yield(void)
{
    own_time.now_ns += own_time.yield_ns;
    own_time.yields++;
    return __real_sched_yield();
}

long __wrap_syscall(long number, ...)
{
    long arguments[6];
    va_list list;
    if (number == SYS_membarrier && atomic_load(&membarrier_fails)) {
        errno = EPERM;
        return -1;
    }
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        arguments[i] = va_arg(list, long);
    va_end(list);
    return __real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

static uint32_t tell(kl__lane_task **tasks, uint32_t count)
{
    void (*call)(kl__lane_task **, uint32_t) = atomic_load(&on_take);
    if (call && count > 0)
        call(tasks, count);
    return count;
}

uint32_t __wrap_kl__shard_take(kl__shard *shard, kl__lane_task **ret_tasks, uint32_t most, int64_t *now_ns)
{
    return tell(ret_tasks, __real_kl__shard_take(shard, ret_tasks, most, now_ns));
}

uint32_t __wrap_kl__shard_start(kl__shard *shard, kl__lane_task **ret_tasks, uint32_t most, int64_t *now_ns)
{
    return tell(ret_tasks, __real_kl__shard_start(shard, ret_tasks, most, now_ns));
}

void __wrap_kl__exec_report(kl__shard *shard, kl__exec_task *task, kl_outcome outcome, kl_rc rc, const char *error)
{
    void (*call)(void) = atomic_load(&on_report);
    if (call)
        call();
    __real_kl__exec_report(shard, task, outcome, rc, error);
}

bool __wrap_kl__lanes_await(kl__lanes *lanes, const kl__lane_key *key, kl__lane_barrier *barrier)
{
    bool waits = __real_kl__lanes_await(lanes, key, barrier);
    atomic_fetch_add(&barriers_waiting, waits);
    return waits;
}
