/* put_check.c - whether a task can be put: limits, and fields that contradict each other.
 *
 * From: put.c, job_submit.c, cron.c, net/.  To: nothing; a refusal says which field and what is allowed. */
#include "queue/put.h"

static inline kl_rc check_bytes(const char *what, kl_bytes bytes, size_t max)
{
    if (KL_UNLIKELY(bytes.len > max))
        return kl__fail(KL_EINVAL, "its %s has %zu bytes; make it %zu or fewer", what, bytes.len, max);
    if (KL_UNLIKELY(bytes.len > 0 && !bytes.data))
        return kl__fail(KL_EINVAL, "its %s has %zu bytes, but the pointer to them is NULL; pass the bytes", what,
                        bytes.len);
    return KL_OK;
}

static inline kl_rc check_number(const char *what, int64_t value, int64_t min, int64_t max)
{
    if (KL_LIKELY(value >= min && value <= max))
        return KL_OK;
    return kl__fail(KL_EINVAL, "%s is %lld; write %lld to %lld", what, (long long)value, (long long)min,
                    (long long)max);
}

static inline kl_rc check_numbers(const kl_put *task)
{
    kl_rc rc = check_number("priority", task->priority, KL_PRIORITY_MIN, KL_PRIORITY_MAX);
    if (rc == KL_OK)
        rc = check_number("delay_ms", task->delay_ms, 0, KL_DELAY_MS_MAX);
    if (rc == KL_OK)
        rc = check_number("due_ms", task->due_ms, 0, KL_ID_MS_MAX);
    if (rc == KL_OK && KL_UNLIKELY(task->delay_ms > 0 && task->due_ms > 0))
        rc = kl__fail(KL_EINVAL, "it has both delay_ms (%lld) and due_ms (%lld); set one of them",
                      (long long)task->delay_ms, (long long)task->due_ms);
    if (rc == KL_OK)
        rc = check_number("attempts_max", task->attempts_max, 0, KL_ATTEMPTS_MAX);
    if (rc == KL_OK)
        rc = check_number("timeout_ms", task->timeout_ms, 0, KL_FOREVER);
    return rc;
}

static kl_rc check_unique(const kl_put *task)
{
    kl_rc rc = check_bytes("unique", task->unique, KL_UNIQUE_BYTES_MAX);
    if (rc == KL_OK)
        rc = check_number("unique_ms", task->unique_ms, 0, KL_ID_MS_MAX);
    if (rc == KL_OK && task->unique_ms > 0 && task->unique.len == 0)
        rc = kl__fail(KL_EINVAL, "unique_ms is %lld, but it has no unique; set that too, or leave both",
                      (long long)task->unique_ms);
    return rc;
}

static kl_rc check_headers(const kl_put *task)
{
    kl_rc rc = KL_OK;
    if (task->header_count > KL_HEADERS_MAX || (task->header_count > 0 && !task->headers))
        return kl__fail(KL_EINVAL, "header_count is %zu; pass that many headers, and up to %d", task->header_count,
                        KL_HEADERS_MAX);
    for (size_t j = 0; rc == KL_OK && j < task->header_count; j++) {
        const kl_header *header = &task->headers[j];
        rc = check_bytes("header's name", header->name, KL_HEADERS_BYTES_MAX);
        if (rc == KL_OK && header->name.len == 0)
            rc = kl__fail(KL_EINVAL, "header %zu has no name; give it one", j + 1);
        if (rc == KL_OK)
            rc = check_bytes("header's value", header->value, KL_HEADERS_BYTES_MAX);
    }
    return rc;
}

static kl_rc check_tags(const kl_put *task)
{
    kl_rc rc = KL_OK;
    if (task->tag_count > KL_TAGS_MAX || (task->tag_count > 0 && !task->tags))
        return kl__fail(KL_EINVAL, "tag_count is %zu; pass that many tags, and up to %d", task->tag_count, KL_TAGS_MAX);
    for (size_t j = 0; rc == KL_OK && j < task->tag_count; j++) {
        rc = check_bytes("tag", task->tags[j], KL_TAG_BYTES_MAX);
        if (rc == KL_OK && task->tags[j].len == 0)
            rc = kl__fail(KL_EINVAL, "tag %zu is empty; give it a name, or leave it out", j + 1);
    }
    return rc;
}

static kl_rc check_rest(const kl_put *task)
{
    kl_rc rc = check_unique(task);
    if (rc == KL_OK)
        rc = check_number("keep_ms", task->keep_ms, 0, KL_ID_MS_MAX);
    if (rc == KL_OK)
        rc = check_number("job_run", task->job_run, 0, INT64_MAX);
    if (rc == KL_OK)
        rc = check_bytes("group", task->group, KL_GROUP_BYTES_MAX);
    if (rc == KL_OK)
        rc = check_bytes("traceparent", task->traceparent, KL_HEADERS_BYTES_MAX);
    if (rc == KL_OK)
        rc = check_headers(task);
    return rc == KL_OK ? check_tags(task) : rc;
}

kl_rc kl__put_check(const kl_put *task)
{
    kl_rc rc = check_bytes("key", task->key, KL_KEY_BYTES_MAX);
    if (rc == KL_OK)
        rc = check_bytes("kind", task->kind, KL_KIND_BYTES_MAX);
    if (rc == KL_OK)
        rc = check_bytes("payload", task->payload, KL_PAYLOAD_BYTES_MAX);
    if (rc == KL_OK)
        rc = check_numbers(task);
    return rc == KL_OK && !kl__put_is_plain(task) ? check_rest(task) : rc;
}
