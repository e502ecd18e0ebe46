/* history_support.h - a history in a directory of its own, and short ways to fill it and to look into it. */
#ifndef TESTS_HISTORY_SUPPORT_H
#define TESTS_HISTORY_SUPPORT_H

#include "harness.h"
#include "store/disk/history.h"

#define CHECK_OK(call)                                                                                                 \
    do {                                                                                                               \
        kl_rc rc_ = (call);                                                                                            \
        if (rc_ != KL_OK)                                                                                              \
            test_fail(__FILE__, __LINE__, "%s is %s: %s", #call, kl_rc_name(rc_), kl_error_text());                    \
    } while (0)

#define CHECK_BYTES(actual, expected)                                                                                  \
    do {                                                                                                               \
        kl_bytes a_ = (actual), e_ = (expected);                                                                       \
        if (a_.len != e_.len || (a_.len && memcmp(a_.data, e_.data, a_.len) != 0))                                     \
            test_fail(__FILE__, __LINE__, "%s is \"%.*s\", expected \"%.*s\"", #actual, (int)a_.len,                   \
                      a_.len ? (const char *)a_.data : "", (int)e_.len, e_.len ? (const char *)e_.data : "");          \
    } while (0)

struct shelf {
    char dir[64], path[80];
    const char *sqlite_vfs; /* NULL: SQLite's own */
    int64_t rows_max, ms_max;
    kl__history *history; /* NULL: opening failed, and that was recorded */
    kl_arena arena;
};

/* A new directory and history; on another file layer, the path is as given and nothing is removed. */
void shelf_new(struct shelf *shelf);
void shelf_open(struct shelf *shelf);
void shelf_close(struct shelf *shelf); /* the history stays on disk */
void shelf_free(struct shelf *shelf);

/* Tasks are named by a number, which makes their id and their finished time, in partition 1. */
#define SHELF_MS INT64_C(1700000000000)
kl_task_id shelf_id(uint32_t number);
kl_entry shelf_entry(uint32_t number, const char *key);
kl__history_row shelf_row(const kl_entry *entry, kl_outcome outcome, uint32_t attempts, const char *error);

/* Adds one task, and the position is its number. */
void shelf_add(struct shelf *shelf, uint32_t number, kl_outcome outcome, const char *key, const char *error);
void shelf_retry(struct shelf *shelf, uint32_t number, uint32_t attempts, const char *error);

kl_task shelf_read(struct shelf *shelf, uint32_t number);

/* The numbers of what is found, in order, as "5 3 2"; in pages of `page`. Lasts until the next call. */
const char *shelf_find(struct shelf *shelf, kl_find find, size_t page);
uint32_t shelf_number(const kl_task *task);

/* What a query on a connection of its own says: its first value as text, or what went wrong. Lasts until the next
 * call. */
const char *shelf_sql(struct shelf *shelf, const char *sql);

/* Tasks of one shard, at most 64. */
static inline kl_rc read_kept(kl__history *history, kl_place place, const kl_task_id *ids, size_t count,
                              kl_arena *arena, kl_task *tasks)
{
    kl_ref refs[64];
    for (size_t i = 0; i < count && i < 64; i++)
        refs[i] = (kl_ref){.place = place, .id = ids[i]};
    size_t read;
    return kl__history_read(history, refs, count, arena, tasks, &read);
}

#endif
