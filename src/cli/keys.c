/* keys.c - `keyline key`: keys with their lines, why each of them waits, and what to do about it. */
#include <inttypes.h>
#include <string.h>

#include "base/base.h"
#include "base/compare.h"
#include "cli/config.h"
#include "cli/output.h"
#include "cli/task_rows.h"
#include "queue/record.h"
#include "work/why.h"

typedef struct key_opts {
    const char *queue, *key, *partition;
    int64_t limit, by, dead;
} key_opts;

enum { KEYS_MAX = 1000, PAUSED_MAX = 256, PLACES_MAX = 64 };

/* ---- Showing ---- */

/* What the store alone tells: a list does not ask the workers. */
static const kl__column list_columns[] = {
    {"key", KL_COLUMN_WHOLE},    {"waiting", KL_COLUMN_RIGHT},    {"state", KL_COLUMN_STATE},
    {"until", KL_COLUMN_WHOLE},  {"attempts", KL_COLUMN_RIGHT},   {"head", KL_COLUMN_WHOLE},
    {"oldest", KL_COLUMN_WHOLE}, {"at_least", KL_COLUMN_MACHINE}, {NULL, 0},
};

static const kl__column show_columns[] = {
    {"key", 0},
    {"partition", 0},
    {"layout", 0},
    {"waiting", 0},
    {"state", KL_COLUMN_STATE},
    {"until", 0},
    {"attempts", 0},
    {"reason", 0},
    {"head", 0},
    {"kind", 0},
    {"error", 0},
    {"worker", 0},
    {"running_ms", 0},
    {"percent", 0},
    {"progress", 0},
    {"at_least", KL_COLUMN_MACHINE},
    {NULL, 0},
};

enum { KEY_COLUMNS = 16 };

static kl__cell text_or_none(const char *text) { return kl__cell_bytes_or_none(kl_str(text)); }

/* People see 1000+ where there are more than were counted; machines are told by at_least. */
static kl__cell waiting_cell(kl__call *call, const kl_key_status *key)
{
    const char *text =
        key->at_least && !kl__call_json(call) ? kl__format(&call->arena, "%" PRIu64 "+", key->waiting) : NULL;
    return text ? kl__cell_text(text) : kl__cell_number((int64_t)key->waiting);
}

static void fill_cells(kl__call *call, const kl_key_status *key, kl_bytes kind, kl__cell cells[KEY_COLUMNS])
{
    bool running = key->why == KL_WHY_RUNNING;
    const kl__cell filled[KEY_COLUMNS] = {
        kl__cell_bytes(key->key),
        kl__cell_text(key->partition),
        kl__cell_number((int64_t)key->layout),
        waiting_cell(call, key),
        kl__cell_text(kl__why_name(key->why)),
        kl__cell_time(key->until_ms),
        kl__cell_number(key->attempts),
        text_or_none(key->reason),
        kl__cell_id_or_none(&key->head),
        kl__cell_bytes_or_none(kind),
        text_or_none(key->error),
        text_or_none(key->owner),
        running ? kl__cell_duration(key->running_ms) : kl__cell_none(),
        running && key->percent >= 0 ? kl__cell_number(key->percent) : kl__cell_none(),
        running ? text_or_none(key->progress) : kl__cell_none(),
        kl__cell_flag(key->at_least),
    };
    memcpy(cells, filled, sizeof filled);
}

static void list_one(kl__call *call, kl__out *out, const kl_key_status *key)
{
    kl__out_row(out, (kl__cell[]){kl__cell_bytes(key->key), waiting_cell(call, key),
                                  kl__cell_text(kl__why_listed(key->why)), kl__cell_time(key->until_ms),
                                  kl__cell_number(key->attempts), kl__cell_id_or_none(&key->head),
                                  kl__cell_time(key->oldest_ms), kl__cell_flag(key->at_least)});
}

static bool is_among(const kl_key_status *keys, size_t count, kl_bytes key)
{
    for (size_t i = 0; i < count; i++)
        if (kl__bytes_equal(keys[i].key, key))
            return true;
    return false;
}

/* Paused keys for which nothing waits, or was seen to, behind the `count` that were listed: somebody should know that
 * what comes will not be run. Records of paused keys tell them; the first of these, where they are very many. */
static kl_rc list_idle(kl__call *call, kl__out *out, const kl_key_status *keys, size_t count, size_t max)
{
    char name[KL_RECORD_NAME_BYTES];
    const key_opts *opts = call->values;
    kl_bytes prefix = kl__record_name(name, sizeof name, "pause", opts->queue, "");
    kl_record records[PAUSED_MAX];
    size_t found = 0, listed = count;
    kl_rc rc = kl_store_list(call->store, prefix, kl_str(""), PAUSED_MAX, &call->arena, records, &found);
    for (size_t i = 0; rc == KL_OK && i < found && listed < max; i++) {
        kl__json from;
        kl_key_status idle = {.why = KL_WHY_PAUSED, .at_least = count > 0 && keys[0].at_least};
        rc = kl__json_parse(records[i].value, "of a paused key", &from);
        if (rc != KL_OK)
            break;
        idle.key = kl__json_bytes(&from, "key", &call->arena);
        rc = from.rc;
        kl__json_free(&from);
        if (rc != KL_OK || is_among(keys, count, idle.key))
            continue;
        list_one(call, out, &idle);
        listed++;
    }
    return rc;
}

static int run_ls(kl__call *call)
{
    const key_opts *opts = call->values;
    size_t max = (size_t)(opts->limit ? opts->limit : KL_LIST_STANDARD), count = 0;
    size_t asked = max < KEYS_MAX ? max + 1 : max; /* one more tells that there are more */
    kl_queue *queue;
    kl__out out;
    int status = kl__call_find(call, opts->queue, &queue);
    if (status != KL_EXIT_OK)
        return status;
    kl_key_status *keys = kl_arena_alloc(&call->arena, asked * sizeof *keys);
    kl_rc rc =
        keys ? kl_key_list(queue, (kl_key_order)opts->by, 0, asked, &call->arena, keys, &count) : kl__fail_memory();
    if (rc != KL_OK)
        return kl__fail_call(rc);
    bool has_more = count > max;
    count -= has_more;
    kl__out_begin(&out, call, list_columns);
    for (size_t i = 0; i < count; i++)
        list_one(call, &out, &keys[i]);
    rc = list_idle(call, &out, keys, count, max);
    status = kl__out_end(&out);
    if (has_more)
        kl__tell_more(call, (int64_t)max);
    return rc == KL_OK ? status : kl__fail_call(rc);
}

/* QUEUE may be the name of a partition. */
static int begin(kl__call *call, kl_queue **ret_queue, kl_bytes *ret_key, const char **ret_partition)
{
    const key_opts *opts = call->values;
    *ret_key = kl_str(opts->key);
    int status = kl__call_find_partition(call, opts->queue, ret_queue, ret_partition);
    if (status != KL_EXIT_OK || !opts->partition)
        return status;
    if (*ret_partition && strcmp(*ret_partition, opts->partition) != 0) {
        kl__complain("%s and --partition %s are two partitions; keep one of the two", *ret_partition, opts->partition);
        return KL_EXIT_USAGE;
    }
    *ret_partition = opts->partition;
    return KL_EXIT_OK;
}

/* Of the key's first task, which may have ended meanwhile; that is no failure, and the rest is worth telling. */
static kl_bytes kind_of(kl_queue *queue, const kl_key_status *key, kl_arena *arena)
{
    static const kl_task_id none;
    kl_found found;
    if (memcmp(&key->head, &none, sizeof none) == 0 || kl_queue_task(queue, &key->head, arena, &found) != KL_OK)
        return (kl_bytes){0};
    return found.task.entry.kind;
}

static int run_show(kl__call *call)
{
    kl__cell cells[KEY_COLUMNS];
    kl_key_status places[PLACES_MAX];
    size_t count = 0;
    const char *partition;
    kl_queue *queue;
    kl_bytes key;
    int status = begin(call, &queue, &key, &partition);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_key_places(queue, key, partition, PLACES_MAX, &call->arena, places, &count);
    if (rc != KL_OK)
        return kl__fail_given(rc);
    for (size_t i = 0; i < count && status == KL_EXIT_OK; i++) {
        if (i > 0 && !kl__call_json(call))
            putchar('\n');
        fill_cells(call, &places[i], kind_of(queue, &places[i], &call->arena), cells);
        status = kl__out_thing(call, show_columns, cells);
    }
    return status;
}

/* ---- Acting ---- */

static int say_done(kl__call *call, const char *done, const kl_task_id *id, int64_t tasks)
{
    static const kl__column columns[] = {{"queue", 0}, {"key", 0}, {"done", 0}, {"task", 0}, {"tasks", 0}, {NULL, 0}};
    const key_opts *opts = call->values;
    char rest[KL_ID_TEXT_BYTES + 32] = "";
    const char *key = kl__out_harmless(kl_str(opts->key), &call->arena);
    if (id) {
        memcpy(rest, ": ", 2);
        kl_id_print(id, rest + 2);
    } else if (tasks >= 0) {
        snprintf(rest, sizeof rest, ": %" PRId64 " task%s", tasks, kl__plural((uint64_t)tasks));
    }
    return kl__out_done(call, columns,
                        (kl__cell[]){kl__cell_text(opts->queue), kl__cell_text(opts->key), kl__cell_text(done),
                                     id ? kl__cell_id(id) : kl__cell_none(),
                                     tasks < 0 ? kl__cell_none() : kl__cell_number(tasks)},
                        "key %s of %s %s%s", key ? key : "", opts->queue, done, rest);
}

/* Of a key as a whole: pauses know no partitions. */
static int act(kl__call *call, kl_rc (*action)(kl_queue *queue, kl_bytes key), const char *done)
{
    const char *partition;
    kl_queue *queue;
    kl_bytes key;
    int status = begin(call, &queue, &key, &partition);
    if (status != KL_EXIT_OK)
        return status;
    if (partition) {
        kl__complain("a key is %s in all partitions together, and %s is one of them; name the queue", done, partition);
        return KL_EXIT_USAGE;
    }
    kl_rc rc = action(queue, key);
    return rc == KL_OK ? say_done(call, done, NULL, -1) : kl__fail_given(rc);
}

static int run_pause(kl__call *call) { return act(call, kl_key_pause, "paused"); }
static int run_resume(kl__call *call) { return act(call, kl_key_resume, "resumed"); }

static int run_retry(kl__call *call)
{
    const char *partition;
    kl_queue *queue;
    kl_bytes key;
    int status = begin(call, &queue, &key, &partition);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_key_retry(queue, key, partition);
    return rc == KL_OK ? say_done(call, "tried now", NULL, -1) : kl__fail_given(rc);
}

static int run_skip(kl__call *call)
{
    kl_queue *queue;
    kl_bytes key;
    kl_task_id id;
    const char *partition;
    int status = begin(call, &queue, &key, &partition);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_key_skip(queue, key, partition, &id);
    return rc == KL_OK ? say_done(call, "skips its first task", &id, -1) : kl__fail_given(rc);
}

static int run_drain(kl__call *call)
{
    const key_opts *opts = call->values;
    kl_queue *queue;
    kl_bytes key;
    uint64_t count;
    const char *partition;
    int status = begin(call, &queue, &key, &partition);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_key_drain(queue, key, partition, opts->dead, &count);
    return rc == KL_OK ? say_done(call, "drained", NULL, (int64_t)count) : kl__fail_given(rc);
}

/* ---- Tables ---- */

static const kl__argument queue_argument[] = {
    {"QUEUE", offsetof(key_opts, queue), KL_NEEDED, "the queue"},
    {NULL, 0, 0, NULL},
};

static const kl__argument key_arguments[] = {
    {"QUEUE", offsetof(key_opts, queue), KL_NEEDED, "the queue"},
    {"KEY", offsetof(key_opts, key), KL_NEEDED, "the key"},
    {NULL, 0, 0, NULL},
};

static const kl__argument place_arguments[] = {
    {"QUEUE", offsetof(key_opts, queue), KL_NEEDED, "the queue, or one of its partitions"},
    {"KEY", offsetof(key_opts, key), KL_NEEDED, "the key"},
    {NULL, 0, 0, NULL},
};

static const kl__option ls_options[] = {
    {"--by", "depth|age|state", "which first: long lines, old tasks, or those that are held up (depth)",
     offsetof(key_opts, by), 0, 0},
    {"--limit", "N", "no more than so many (100)", offsetof(key_opts, limit), 1, KEYS_MAX},
    {NULL, NULL, NULL, 0, 0, 0},
};

#define PARTITION_OPTION                                                                                               \
    {                                                                                                                  \
        "--partition", "NAME", "only in this partition of the queue", offsetof(key_opts, partition), 0, 0              \
    }

static const kl__option place_options[] = {
    PARTITION_OPTION,
    {NULL, NULL, NULL, 0, 0, 0},
};

static const kl__option drain_options[] = {
    PARTITION_OPTION,
    {"--dead", NULL, "as dead letters, which can be put back later", offsetof(key_opts, dead), 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

#define KEY_COMMAND(variable, name_, summary_, about_, arguments_, options_, run_)                                     \
    static const kl__command variable = {.name = (name_),                                                              \
                                         .summary = (summary_),                                                        \
                                         .about = (about_),                                                            \
                                         .arguments = (arguments_),                                                    \
                                         .options = (options_),                                                        \
                                         .values_size = sizeof(key_opts),                                              \
                                         .takes = KL_TAKES_JSON | KL_TAKES_STORE,                                      \
                                         .run = (run_)}

KEY_COMMAND(ls, "ls", "list keys with waiting tasks, the longest lines first",
            "Lists keys with waiting tasks, the longest lines first unless --by says otherwise, and behind\n"
            "them paused keys that have none, as the store knows them: `keyline key show` asks the worker,\n"
            "and tells running from waiting and why.\n",
            queue_argument, ls_options, run_ls);
KEY_COMMAND(show, "show", "say why a key waits",
            "Shows a key's line and says why its first task does not run right now, and what to do about it.\n"
            "A key has a line in each partition where tasks of it were put by name, and in each older layout\n"
            "that is not drained: each of them is shown. QUEUE may be the name of one partition.\n",
            place_arguments, place_options, run_show);
KEY_COMMAND(pause_it, "pause", "start none of a key's tasks",
            "Starts none of the key's tasks, in any partition, until it is resumed, whoever works on it.\n",
            key_arguments, NULL, run_pause);
KEY_COMMAND(resume, "resume", "start a key's tasks again",
            "Lets a paused key go on. Also wakes a halted or retrying key, giving its first task all\n"
            "attempts again.\n",
            key_arguments, NULL, run_resume);
KEY_COMMAND(skip, "skip", "end a key's first task",
            "Ends the key's first task as cancelled, so that the key goes on with the next. Exits with 75\n"
            "when that task is running: cancel it instead. Where it has lines in several partitions, name one.\n",
            place_arguments, place_options, run_skip);
KEY_COMMAND(drain, "drain", "end all waiting tasks of a key",
            "Ends all of the key's tasks that are not running, as cancelled or, with --dead, as dead letters.\n",
            place_arguments, drain_options, run_drain);
KEY_COMMAND(retry, "retry", "try a key's first task now",
            "Tries the key's first task again now, with all attempts before it; in each partition where it\n"
            "has tasks.\n",
            place_arguments, place_options, run_retry);

static const kl__command *const subs[] = {&ls, &show, &pause_it, &resume, &skip, &drain, &retry, NULL};

const kl__command kl__key_command = {
    .name = "key",
    .summary = "list, show, pause, resume, skip, drain and retry keys",
    .about = "Deals with single keys, wherever their worker is.\n",
    .subs = subs,
};
