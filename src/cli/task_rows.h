/* task_rows.h - tasks as they are listed and shown, and the words that choose some of them. */
#ifndef KL_CLI_TASK_ROWS_H
#define KL_CLI_TASK_ROWS_H

#include "cli/output.h"
#include "keyline/control.h"
#include "keyline/queue.h"
#include "queue/job.h"

enum { KL_LIST_PAGE = 200, KL_LIST_STANDARD = 100, KL_LIST_MAX = 1000000 };

/* Of lists: the same fields in JSON, and for people what can be told of such tasks. */
extern const kl__column kl__waiting_columns[], kl__finished_columns[];

/* marks: which jobs are cancelled or removed, so that it is told of their waiting tasks; NULL: none of them waits. why:
 * as from kl__tasks_why. */
void kl__task_row(kl__out *out, const kl_found *found, const kl__cancelled_set *marks, kl_why why);

/* Everything about one task. KL_EXIT_OK, or it has complained. */
int kl__task_thing(kl__call *call, kl_queue *queue, const kl_found *found);

/* Reads a task's or job's id. False: it has complained. */
bool kl__id_read(const char *what, const char *text, kl_task_id *ret_id);

/* Which finished tasks are meant: options of `ls` and `dead`. */
typedef struct kl__filter_opts {
    const char *key, *kind, *words, *job;
    int64_t from_ms, until_ms;
} kl__filter_opts;

#define KL__FILTER_OPTIONS(type)                                                                                       \
    {"--key", "KEY", "only of this key", offsetof(type, filter.key), 0, 0},                                            \
        {"--kind", "KIND", "only of this kind", offsetof(type, filter.kind), 0, 0},                                    \
        {"--words", "WORDS", "only with all these words in an error", offsetof(type, filter.words), 0, 0},             \
        {"--job", "ID", "only of this job", offsetof(type, filter.job), 0, 0},                                         \
        {"--from", "TIME", "only finished at this time or later: -1h", offsetof(type, filter.from_ms), 0, 0},          \
    {                                                                                                                  \
        "--until", "TIME", "only finished before this time", offsetof(type, filter.until_ms), 0, 0                     \
    }

/* False: it has complained. */
bool kl__filter_fill(const kl__filter_opts *opts, kl_finished *ret_which);

/* Whether anything was asked for. */
bool kl__filter_is_set(const kl__filter_opts *opts);

/* Lists tasks page by page up to the limit, and tells when there are more. `page` reads up to max of them behind the
 * cursor, which it sets to where the next page begins, or empty at the end. */
typedef kl_rc kl__page_fn(void *ctx, size_t max, kl_bytes *cursor, kl_arena *arena, kl_found *ret_found,
                          size_t *ret_count);
int kl__list_tasks(kl__call *call, kl_queue *queue, const kl__column *columns, int64_t limit, kl__page_fn *page,
                   void *ctx);

/* Lists finished tasks, `limit` of them at most. */
int kl__finished_list(kl__call *call, kl_queue *queue, const kl_finished *which, int64_t limit);

/* Says on standard error that the list was cut off; with --json as {"more": true, ...}. */
void kl__tell_more(const kl__call *call, int64_t limit);

#endif
