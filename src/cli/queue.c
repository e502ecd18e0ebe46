/* queue.c - `keyline queue`: make, change, list, show, pause, resume and remove queues. */
#include <inttypes.h>
#include <string.h>

#include "base/base.h"
#include "cli/config.h"
#include "cli/output.h"
#include "keyline/exec.h"
#include "keyline/queue.h"
#include "keyline/shards.h"
#include "queue/inside.h"
#include "queue/json.h"
#include "work/owners.h"
#include "work/why.h"

typedef struct queue_opts {
    const char *name;
    int64_t if_missing;
    kl__texts stores;
} queue_opts;

enum { NAMES_MAX = 100, LOOK_TASKS = 200 /* of a queue, to find a kind that nobody runs */ };

static const kl__argument name_argument[] = {
    {"QUEUE", offsetof(queue_opts, name), KL_NEEDED, "the queue's name"},
    {NULL, 0, 0, NULL},
};

/* ---- Showing ---- */

static const kl__column list_columns[] = {
    {"queue", KL_COLUMN_WHOLE},
    {"state", KL_COLUMN_STATE},
    {"ready", KL_COLUMN_RIGHT},
    {"due", KL_COLUMN_RIGHT},
    {"retry", KL_COLUMN_RIGHT},
    {"dead", KL_COLUMN_RIGHT},
    {"partitions", KL_COLUMN_RIGHT},
    {"shard_prefix_len", KL_COLUMN_MACHINE},
    {"at_least", KL_COLUMN_MACHINE},
    {"finished_behind", KL_COLUMN_MACHINE},
    {NULL, 0},
};

static const kl__column show_columns[] = {
    {"queue", 0},
    {"state", KL_COLUMN_STATE},
    {"ready", 0},
    {"due", 0},
    {"retry", 0},
    {"done", 0},
    {"dead", 0},
    {"cancelled", 0},
    {"at_least", KL_COLUMN_MACHINE},
    {"finished_behind", KL_COLUMN_MACHINE},
    {"unserved_kind", 0},
    {"without_worker", 0},
    {"away", 0},
    {"refused", 0},
    {"refused_why", 0},
    {"oldest", 0},
    {"created", 0},
    {"layout_number", 0},
    {"layouts_draining", 0},
    {"partitions", 0},
    {"partition_stores", 0},
    {"shard_prefix_len", 0},
    {"attempts", 0},
    {"backoff_ms", 0},
    {"backoff_max_ms", 0},
    {"timeout_ms", 0},
    {"lease_ms", 0},
    {"head_policy", 0},
    {"keep_done_ms", 0},
    {"keep_dead_ms", 0},
    {"rate", 0},
    {"burst", 0},
    {"concurrency", 0},
    {NULL, 0},
};

static const char *state_of(const kl_queue_info *info) { return info->paused ? "paused" : "active"; }

static kl__cell count_cell(uint64_t count) { return kl__cell_number((int64_t)count); }

/* People see 12+ where there are, or may be, more; machines are told by at_least and finished_behind. */
static kl__cell least_cell(kl__call *call, bool is_least, uint64_t count)
{
    const char *text = is_least && !kl__call_json(call) ? kl__format(&call->arena, "%" PRIu64 "+", count) : NULL;
    return text ? kl__cell_text(text) : count_cell(count);
}

static kl__cell text_cell(const char *text) { return *text ? kl__cell_text(text) : kl__cell_none(); }

/* A limit that may be none. */
static kl__cell limit_cell(int64_t value)
{
    return value == KL_FOREVER || value <= 0 ? kl__cell_absent() : kl__cell_number(value);
}

static kl__cell time_limit_cell(int64_t ms)
{
    return ms == KL_FOREVER || ms <= 0 ? kl__cell_absent() : kl__cell_duration(ms);
}

/* As --partition-store takes them: one for each partition, "" for the queue's own; none when all are there. */
static kl__cell stores_cell(const kl_queue_opts *settings, kl_arena *arena)
{
    json_t *stores = settings->store_count ? kl__json_array() : NULL;
    if (settings->store_count == 0)
        return kl__cell_none();
    for (size_t i = 0; i < settings->store_count && stores; i++) {
        const char *url = kl__shown_url(settings->stores[i], arena);
        if (url && kl__json_append(stores, kl__json_bytes_value(kl_str(url))))
            continue;
        json_decref(stores);
        stores = NULL;
    }
    return kl__cell_json(stores);
}

/* The first kind among what waits for which there are workers, but none that runs it. */
static kl__cell unserved_cell(kl__call *call, kl_queue *queue)
{
    kl_found *found = kl_arena_alloc(&call->arena, LOOK_TASKS * sizeof *found);
    kl_waiting which = {.max = LOOK_TASKS};
    kl_why why[LOOK_TASKS];
    kl_bytes cursor;
    size_t count = 0;
    if (!found || kl_queue_waiting(queue, &which, &call->arena, found, &count, &cursor) != KL_OK ||
        kl__tasks_why(queue, found, count, why) != KL_OK)
        return kl__cell_none();
    size_t first = 0;
    while (first < count && why[first] != KL_WHY_KIND)
        first++;
    if (first == count)
        return kl__cell_none();
    kl_bytes kind = found[first].task.entry.kind;
    return kind.len || kl__call_json(call) ? kl__cell_bytes(kind) : kl__cell_text("tasks without a kind");
}

/* ", orders__p1 8-f": shards of a partition that nobody owns. */
struct unowned {
    kl_arena *arena;
    uint64_t newest;  /* layout; others are named */
    const char *text; /* "": none so far */
};

static kl_rc note_unowned(void *context, const char *partition, uint64_t number, const kl_layout *layout,
                          const kl__ownership *ownership)
{
    enum { RANGES_BYTES = 64 }; /* what is behind that is not told */
    struct unowned *unowned = context;
    char ranges[RANGES_BYTES];
    kl_shards shards;
    kl_shards_none(layout, &shards);
    for (uint32_t shard = 0; shard < kl_layout_shards(layout); shard++)
        if (!kl__ownership_of(ownership, shard))
            shards.bits[shard / 64] |= UINT64_C(1) << shard % 64;
    if (kl_shards_next(&shards, 0) < 0)
        return KL_OK;
    bool is_cut = kl_shards_print(&shards, ranges, sizeof ranges) >= sizeof ranges;
    if (is_cut)
        *strrchr(ranges, ',') = '\0';
    const char *text = kl__format(unowned->arena, "%s%s%s %s%s", unowned->text, *unowned->text ? ", " : "", partition,
                                  ranges, is_cut ? " and more" : "");
    if (text && number != unowned->newest)
        text = kl__format(unowned->arena, "%s of layout %" PRIu64, text, number);
    unowned->text = text ? text : unowned->text;
    return text ? KL_OK : kl__fail_memory();
}

/* Where tasks may wait for ever: nobody works, or nobody may take these shards. */
static kl__cell unowned_cell(kl__call *call, kl_queue *queue, const kl_queue_info *info)
{
    const kl_counts *counts = &info->counts;
    struct unowned unowned = {&call->arena, info->layout_number, ""};
    if (counts->ready + counts->due + counts->retry == 0 ||
        kl__queue_owners(queue, &call->arena, note_unowned, &unowned) != KL_OK || !*unowned.text)
        return kl__cell_none();
    return kl__cell_text(unowned.text);
}

static int show_thing(kl__call *call, kl_queue *queue, const kl_queue_info *info)
{
    const kl_queue_opts *set = &info->settings;
    const kl_counts *counts = &info->counts;
    return kl__out_thing(call, show_columns,
                         (kl__cell[]){kl__cell_text(info->name),
                                      kl__cell_text(state_of(info)),
                                      count_cell(counts->ready),
                                      count_cell(counts->due),
                                      count_cell(counts->retry),
                                      least_cell(call, counts->finished_behind, counts->done),
                                      least_cell(call, counts->finished_behind, counts->dead),
                                      least_cell(call, counts->finished_behind, counts->cancelled),
                                      kl__cell_flag(counts->at_least),
                                      kl__cell_flag(counts->finished_behind),
                                      unserved_cell(call, queue),
                                      unowned_cell(call, queue, info),
                                      text_cell(info->away),
                                      info->refused ? count_cell(info->refused) : kl__cell_none(),
                                      text_cell(info->refused_why),
                                      kl__cell_time(counts->oldest_id_ms),
                                      kl__cell_time(info->created_ms),
                                      count_cell(info->layout_number),
                                      count_cell(info->layouts_draining),
                                      kl__cell_number(set->partitions),
                                      stores_cell(set, &call->arena),
                                      kl__cell_number(set->shard_prefix_len),
                                      kl__cell_number(set->attempts_max),
                                      kl__cell_duration(set->backoff_base_ms),
                                      kl__cell_duration(set->backoff_max_ms),
                                      time_limit_cell(set->timeout_ms),
                                      kl__cell_duration(set->lease_ms),
                                      kl__cell_text(kl__policy_name(set->head_policy)),
                                      time_limit_cell(set->keep_done_ms),
                                      time_limit_cell(set->keep_dead_ms),
                                      limit_cell(set->rate),
                                      limit_cell(set->burst),
                                      limit_cell(set->concurrency)});
}

static int run_show(kl__call *call)
{
    const queue_opts *opts = call->values;
    kl_queue *queue;
    kl_queue_info info;
    int status = kl__call_find(call, opts->name, &queue);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_queue_show(queue, &call->arena, &info);
    return rc == KL_OK ? show_thing(call, queue, &info) : kl__fail_call(rc);
}

/* ---- Listing ---- */

static kl_rc list_one(kl__call *call, kl__out *out, const char *name, kl_arena *arena)
{
    kl_queue *queue;
    kl_queue_info info;
    kl_rc rc = kl_queue_find(call->store, name, &queue);
    if (rc != KL_OK)
        return rc == KL_ENOTFOUND ? KL_OK : rc; /* removed meanwhile */
    rc = kl_queue_show(queue, arena, &info);
    if (rc == KL_OK)
        kl__out_row(out, (kl__cell[]){
                             kl__cell_text(name), kl__cell_text(state_of(&info)),
                             least_cell(call, info.counts.at_least, info.counts.ready),
                             least_cell(call, info.counts.at_least, info.counts.due),
                             least_cell(call, info.counts.at_least, info.counts.retry),
                             least_cell(call, info.counts.at_least || info.counts.finished_behind, info.counts.dead),
                             kl__cell_number(info.settings.partitions), kl__cell_number(info.settings.shard_prefix_len),
                             kl__cell_flag(info.counts.at_least), kl__cell_flag(info.counts.finished_behind)});
    kl_queue_close(queue);
    return rc;
}

/* One that cannot be opened, as when the store of a partition is not there, hides nobody else: what is wrong with it is
 * said, and *ret_failed is the first such code. */
static kl_rc list_all(kl__call *call, kl__out *out, kl_rc *ret_failed)
{
    const char *names[NAMES_MAX];
    char after[KL_QUEUE_NAME_MAX + 1] = "";
    size_t count = NAMES_MAX;
    kl_rc rc = KL_OK;
    *ret_failed = KL_OK;
    while (rc == KL_OK && count == NAMES_MAX) {
        kl_arena arena = {0};
        rc = kl_queue_list(call->store, after, NAMES_MAX, &arena, names, &count);
        for (size_t i = 0; i < count && rc == KL_OK; i++) {
            kl_rc listed = list_one(call, out, names[i], &arena);
            if (listed == KL_ENOMEM)
                rc = listed;
            else if (listed != KL_OK)
                kl__fail_call(listed);
            if (*ret_failed == KL_OK)
                *ret_failed = listed;
        }
        if (rc == KL_OK && count > 0)
            snprintf(after, sizeof after, "%s", names[count - 1]);
        kl_arena_free(&arena);
    }
    return rc;
}

static int run_list(kl__call *call)
{
    kl__out out;
    int status = kl__call_store(call);
    if (status != KL_EXIT_OK)
        return status;
    kl__out_begin(&out, call, list_columns);
    kl_rc failed, rc = list_all(call, &out, &failed);
    status = kl__out_end(&out);
    if (rc != KL_OK)
        return kl__fail_call(rc);
    return status == KL_EXIT_OK ? kl__exit_of(failed) : status;
}

/* ---- Making and changing ---- */

static const kl__column done_columns[] = {{"queue", 0}, {"done", 0}, {NULL, 0}};

static int say_done(kl__call *call, const char *name, const char *done)
{
    return kl__out_done(call, done_columns, (kl__cell[]){kl__cell_text(name), kl__cell_text(done)}, "queue %s %s", name,
                        done);
}

/* Whether it is there is asked first: create says what a queue shall be like, and must not pass over that it is not. */
static int run_create(kl__call *call)
{
    const queue_opts *opts = call->values;
    kl_queue *queue;
    kl_queue_opts stated;
    int status = kl__call_make_store(call);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_queue_find(call->store, opts->name, &queue);
    if (rc == KL_OK)
        kl_queue_close(queue);
    if (rc == KL_OK && !opts->if_missing) {
        const char *sentence = kl__format(&call->arena,
                                          "queue %s exists already; change it with `keyline queue alter "
                                          "%s`, or say --if-missing",
                                          opts->name, opts->name);
        kl__complain_of(KL_ECONFLICT, KL_EXIT_CONFLICT, sentence ? sentence : "");
        return KL_EXIT_CONFLICT;
    }
    if (rc != KL_OK && rc != KL_ENOTFOUND)
        return kl__fail_given(rc);
    const char *done = rc == KL_OK ? "exists already" : "created";
    rc = kl__config_queue_opts(call->config, opts->name, false, &call->arena, &stated);
    if (rc != KL_OK)
        return kl__fail_call(rc);
    stated.stores = opts->stores.items;
    stated.store_count = opts->stores.count;
    status = kl__call_open_as(call, opts->name, &stated, &queue);
    return status == KL_EXIT_OK ? say_done(call, opts->name, done) : status;
}

static bool states_something(const kl__config *config, const queue_opts *opts)
{
    bool stated = opts->stores.count > 0;
    for (int id = KL_SET_PARTITIONS; id <= KL_SET_QUEUE_CONCURRENCY; id++)
        stated = stated || strncmp(config->values[id].origin, "flag ", 5) == 0;
    return stated;
}

static int run_alter(kl__call *call)
{
    const queue_opts *opts = call->values;
    kl_queue *queue;
    kl_queue_opts stated;
    int status = kl__call_find(call, opts->name, &queue);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl__config_queue_opts(call->config, opts->name, true, &call->arena, &stated);
    if (rc != KL_OK)
        return kl__fail_call(rc);
    stated.stores = opts->stores.items;
    stated.store_count = opts->stores.count;
    if (!states_something(call->config, opts)) {
        kl__complain("queue alter changes what options say, and there is none; `keyline help queue alter` lists them");
        return KL_EXIT_USAGE;
    }
    rc = kl_queue_alter(queue, &stated);
    return rc == KL_OK ? say_done(call, opts->name, "altered") : kl__fail_given(rc);
}

/* ---- Pausing, resuming, removing ---- */

static int act(kl__call *call, kl_rc (*action)(kl_queue *queue), const char *done)
{
    const queue_opts *opts = call->values;
    kl_queue *queue;
    int status = kl__call_find(call, opts->name, &queue);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = action(queue);
    return rc == KL_OK ? say_done(call, opts->name, done) : kl__fail_call(rc);
}

static int run_pause(kl__call *call) { return act(call, kl_queue_pause, "paused"); }
static int run_resume(kl__call *call) { return act(call, kl_queue_resume, "resumed"); }
static int run_remove(kl__call *call) { return act(call, kl_queue_remove, "removed"); }

/* ---- Tables ---- */

#define STORES_OPTION                                                                                                  \
    {                                                                                                                  \
        "--partition-store", "URL...", "the store of each partition in turn, \"\" for the queue's own",                \
            offsetof(queue_opts, stores), 0, 0                                                                         \
    }

static const kl__option create_options[] = {
    {"--if-missing", NULL, "let a queue that exists with this layout be, and succeed", offsetof(queue_opts, if_missing),
     0, 0},
    STORES_OPTION,
    {NULL, NULL, NULL, 0, 0, 0},
};

static const kl__option alter_options[] = {STORES_OPTION, {NULL, NULL, NULL, 0, 0, 0}};

enum { PLAIN = KL_TAKES_JSON | KL_TAKES_STORE };

static const kl__command create = {
    .name = "create",
    .summary = "make a queue",
    .about = "Makes a queue as the options and settings say. Queues are also made by the first push, so\n"
             "this is for those that shall be different. Exits with 4 when it exists already.\n",
    .arguments = name_argument,
    .options = create_options,
    .values_size = sizeof(queue_opts),
    .takes = PLAIN | KL_TAKES_QUEUE,
    .run = run_create,
};

static const kl__command alter = {
    .name = "alter",
    .summary = "change a queue",
    .about = "Changes what the options say, and nothing that the environment or keyline.toml says. A new\n"
             "number of partitions or shards opens a new layout at once; tasks in the old one are\n"
             "finished first, key by key, so that order per key survives.\n",
    .arguments = name_argument,
    .options = alter_options,
    .values_size = sizeof(queue_opts),
    .takes = PLAIN | KL_TAKES_QUEUE,
    .run = run_alter,
};

static const kl__command list = {
    .name = "ls",
    .summary = "list the queues of the store",
    .about = "Lists the queues of the store with what waits in them.\n",
    .values_size = sizeof(queue_opts),
    .takes = PLAIN,
    .run = run_list,
};

static const kl__command show = {
    .name = "show",
    .summary = "show one queue with its settings",
    .about = "Shows what waits in a queue, what is kept of it, and its settings as they stand in the store.\n",
    .arguments = name_argument,
    .values_size = sizeof(queue_opts),
    .takes = PLAIN,
    .run = run_show,
};

static const kl__command pause_it = {
    .name = "pause",
    .summary = "take tasks, but start none",
    .about = "Lets the queue take tasks and start none, until it is resumed. Running tasks go on.\n",
    .arguments = name_argument,
    .values_size = sizeof(queue_opts),
    .takes = PLAIN,
    .run = run_pause,
};

static const kl__command resume = {
    .name = "resume",
    .summary = "start tasks again",
    .about = "Lets a paused queue start tasks again.\n",
    .arguments = name_argument,
    .values_size = sizeof(queue_opts),
    .takes = PLAIN,
    .run = run_resume,
};

static const kl__command rm = {
    .name = "rm",
    .summary = "remove an empty queue",
    .about = "Removes a queue that holds no waiting tasks and has no worker, with what is kept of it. Exits\n"
             "with 75 while it does or has.\n",
    .arguments = name_argument,
    .values_size = sizeof(queue_opts),
    .takes = PLAIN,
    .run = run_remove,
};

static const kl__command *const subs[] = {&create, &alter, &list, &show, &pause_it, &resume, &rm, NULL};

const kl__command kl__queue_command = {
    .name = "queue",
    .summary = "make, change, list, show, pause and remove queues",
    .about = "Manages queues.\n",
    .subs = subs,
};
