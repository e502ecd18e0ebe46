/* marks.c - which lines of a shard are in use, beside the ordinary one.
 *
 * From: append.c (a task of another priority, or one that is due later). To:
 * special/<partition>/<shard>/<line>-<period>.
 *
 * Nobody is to read a million tasks to learn that none of them is urgent: whoever appends one that is leaves a mark
 * first, in each period (an hour) anew. The owner takes an old mark away when it has read all that was appended in its
 * period, and the line is empty or has a younger mark.
 *
 * M1  A task that stands in another line than the ordinary one was appended after a mark of its line, of that period or
 *     the one before.
 * M2  A mark is taken away only when two periods have passed since it was put: whatever was appended in reliance on it
 *     has arrived, or never will. */
#include <stdio.h>
#include <stdlib.h>

#include "store/s3/s3.h"

bool kl__s3_read_mark(const char *name, kl__s3_mark *ret_mark)
{
    const char *last = strrchr(name, '/');
    char *end;
    unsigned long line = last ? strtoul(last + 1, &end, 10) : 64;
    if (line >= 64 || end == last + 1)
        return false;
    *ret_mark = (kl__s3_mark){.line = (unsigned)line, .period = *end == '-' ? strtoll(end + 1, NULL, 10) : 0};
    return true;
}

bool kl__s3_mark_is_old(const kl__s3_mark *mark, int64_t now_ms) { return mark->period + 1 < now_ms / KL_S3_MARK_MS; }

uint64_t kl__s3_lines_of(const kl__s3_shard *shard)
{
    const kl__s3_partition *partition = shard->partition;
    bool seen = shard->marks_look && shard->marks_look >= partition->marks_look;
    uint64_t own =
        shard->marked_ns >= partition->marks_ns ? shard->marked : 0; /* the last look may not have seen them */
    return own | (seen ? shard->marks_old | shard->marks_young : 0);
}

/* --- Putting --- */

uint64_t kl__s3_unmarked(kl__s3 *s3, kl__s3_shard *shard, uint64_t lines)
{
    uint64_t ordinary = UINT64_C(1) << -KL_PRIORITY_MIN;
    int64_t period = kl__s3_now(s3) / KL_S3_MARK_MS;
    kl__memory_enter(s3->memory);
    if (shard->marked_period != period)
        shard->marked = 0;
    shard->marked_period = period;
    uint64_t missing = lines & ~ordinary & ~shard->marked;
    kl__memory_leave(s3->memory);
    return missing;
}

char *kl__s3_mark_name(kl__s3 *s3, const kl__s3_shard *shard, unsigned line)
{
    return kl__s3_name(s3, "special/%s/%s/%u-%lld", shard->partition->name, shard->digits, line,
                       (long long)shard->marked_period);
}

void kl__s3_note_marked(kl__s3 *s3, kl__s3_shard *shard, unsigned line)
{
    kl__memory_enter(s3->memory);
    shard->marked |= UINT64_C(1) << line;
    shard->marked_ns = kl__monotonic_ns();
    kl__memory_leave(s3->memory);
}

/* --- Taking away --- */

static bool any_damaged(const kl__tree_node *node)
{
    if (!node)
        return false;
    return KL_CONTAINER(node, kl__s3_object, by_number)->damaged || any_damaged(node->left) || any_damaged(node->right);
}

/* Lines that have no task, of a shard of ours whose log has been read to where it ended not long ago. The mutex is
 * held. */
static uint64_t empty_lines(kl__s3 *s3, const kl__s3_shard *shard)
{
    const kl__memory_shard *lines = kl__memory_shard_of(s3->memory, shard->place);
    uint64_t empty = 0;
    if (!shard->owned || !shard->loaded || shard->taken < shard->tail ||
        !kl__s3_is_fresh(s3, shard->tail_ns, KL_S3_MARK_MS / 2) || any_damaged(shard->objects))
        return 0;
    for (int line = 0; line <= KL_LINE_DUE - KL_PRIORITY_MIN; line++)
        if (!lines || !lines->lines[line])
            empty |= UINT64_C(1) << line;
    return empty;
}

static bool is_needless(const kl__s3_names *names, const kl__s3_mark *mark, uint64_t empty, int64_t now_ms)
{
    bool needless = empty >> mark->line & 1;
    for (size_t i = 0; i < names->count; i++) {
        kl__s3_mark other;
        needless |=
            kl__s3_read_mark(names->items[i].name, &other) && other.line == mark->line && other.period > mark->period;
    }
    return needless && kl__s3_mark_is_old(mark, now_ms);
}

static kl_rc remove_needless(kl__s3 *s3, const kl__s3_names *names, uint64_t empty)
{
    char **doomed = kl__alloc_zeroed(names->count + 1, sizeof *doomed);
    size_t count = 0;
    int64_t now_ms = kl__s3_now(s3);
    kl_rc rc = doomed ? KL_OK : kl__fail_memory();
    for (size_t i = 0; rc == KL_OK && i < names->count; i++) {
        kl__s3_mark mark;
        if (!kl__s3_read_mark(names->items[i].name, &mark) || !is_needless(names, &mark, empty, now_ms))
            continue;
        doomed[count] = kl__s3_name(s3, "%s", names->items[i].name);
        rc = doomed[count++] ? KL_OK : kl__fail_memory();
    }
    if (rc == KL_OK && count)
        rc = kl__s3_delete(s3, doomed, count);
    for (size_t i = 0; i < count; i++)
        kl__free(doomed[i]);
    kl__free(doomed);
    return rc;
}

kl_rc kl__s3_unmark(kl__s3 *s3, kl__s3_shard *shard)
{
    char prefix[KL_S3_NAME_MAX];
    kl__s3_names names;
    kl__memory_enter(s3->memory);
    uint64_t empty = empty_lines(s3, shard);
    bool seen = shard->marks_look && shard->marks_look >= shard->partition->marks_look;
    bool wanted = seen && shard->owned && (shard->marks_old & (empty | shard->marks_young)) != 0 &&
                  !kl__s3_is_fresh(s3, shard->unmarked_ns, KL_S3_MARK_MS / 4);
    if (wanted)
        shard->unmarked_ns = kl__monotonic_ns();
    kl__memory_leave(s3->memory);
    if (!wanted)
        return KL_OK;
    snprintf(prefix, sizeof prefix, "special/%s/%s/", shard->partition->name, shard->digits);
    kl_rc rc = kl__s3_list_page(s3, prefix, NULL, 0, &names);
    if (rc != KL_OK)
        return rc;
    rc = remove_needless(s3, &names, empty);
    kl__s3_names_free(&names);
    return rc;
}
