/* work.c - what handlers call. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "work/worker_inside.h"

kl_task_id kl_work_id(const kl_work *work) { return work->task->entry.id; }
const char *kl_work_queue(const kl_work *work) { return work->served->queue->name; }
const char *kl_work_partition(const kl_work *work) { return work->held->window->partition->plain; }
uint64_t kl_work_layout(const kl_work *work) { return work->held->window->partition->layout_number; }
kl_bytes kl_work_key(const kl_work *work) { return work->task->entry.key; }
kl_bytes kl_work_kind(const kl_work *work) { return work->task->entry.kind; }
kl_bytes kl_work_payload(const kl_work *work) { return work->task->entry.payload; }
const kl_task *kl_work_task(const kl_work *work) { return work->task; }
const kl_task_extra *kl_work_extra(const kl_work *work) { return work->extra; }
uint32_t kl_work_attempt(const kl_work *work) { return work->attempt; }

int64_t kl_work_timeout_ms(const kl_work *work)
{
    if (work->deadline_ns == KL_NEVER)
        return KL_FOREVER;
    int64_t left_ns = work->deadline_ns - kl__monotonic_ns();
    return left_ns > 0 ? (left_ns + 999999) / 1000000 : 0;
}

bool kl_work_cancelled(const kl_work *work)
{
    return kl__pump_unwanted(work->held) || atomic_load(&work->worker->abandoning) ||
           (work->deadline_ns != KL_NEVER && kl__monotonic_ns() >= work->deadline_ns);
}

void kl_work_error(kl_work *work, const char *format, ...)
{
    if (!work->error && !(work->error = kl__alloc(KL_ERROR_BYTES_MAX + 1)))
        return; /* the outcome goes without */
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(work->error, KL_ERROR_BYTES_MAX + 1, format, arguments);
    va_end(arguments);
    work->error_len = length < 0 ? 0 : length > KL_ERROR_BYTES_MAX ? KL_ERROR_BYTES_MAX : (size_t)length;
}

kl_rc kl_work_result(kl_work *work, kl_bytes result)
{
    if (result.len > KL_RESULT_BYTES_MAX)
        return kl__fail(KL_EINVAL,
                        "the result has %zu bytes; up to %u are kept, so store it elsewhere and name it here",
                        result.len, KL_RESULT_BYTES_MAX);
    char *copy = kl__alloc(result.len + 1);
    if (!copy)
        return kl__fail_memory();
    if (result.len)
        memcpy(copy, result.data, result.len);
    kl__free(work->result);
    work->result = copy;
    work->result_len = result.len;
    return KL_OK;
}

void kl_work_retry_after(kl_work *work, int64_t delay_ms)
{
    int64_t max_ms = KL_EXEC_WAIT_MS_MAX;
    work->retry_after_ms = delay_ms < 0 ? 0 : delay_ms > max_ms ? max_ms : delay_ms;
}

void kl_work_progress(kl_work *work, int percent, const char *text)
{
    pthread_mutex_lock(&work->worker->mutex);
    work->progress.percent = percent < 0 ? -1 : percent > 100 ? 100 : percent;
    snprintf(work->progress.text, sizeof work->progress.text, "%s", text ? text : "");
    kl__pump_tell(work->served->pump, work->held, &work->progress);
    work->told = true;
    pthread_mutex_unlock(&work->worker->mutex);
}
