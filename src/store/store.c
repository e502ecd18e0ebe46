/* store.c - the calls of store.h: check, hand to the engine, count.
 *
 * From: queue, work, and applications.  To: an engine.
 *
 * Reading order: dispatch.h -> here -> check.c, store_metrics.c. An engine is its table of functions (kl_engine); what
 * all of them promise is tested by one suite. */
#include "base/clock.h"
#include "base/layout.h"
#include "store/dispatch.h"
#include "store/engines.h"
#include "store/quick.h"
#include "store/socket/socket.h"

/* --- Options --- */

struct setting {
    const char *name;
    size_t offset;
    int64_t standard, min, max;
};

#define FIELD(field) offsetof(kl_store_opts, field)

static const struct setting settings[] = {
    {"segment_bytes", FIELD(segment_bytes), 64 << 20, 64 << 10, 1 << 30},
    {"history_rows_max", FIELD(history_rows_max), 10000000, 1, INT64_C(1000000000000)},
    {"history_ms_max", FIELD(history_ms_max), INT64_C(366) * 24 * 3600 * 1000, 1, KL_ID_MS_MAX},
};

static int64_t wall_ms(void *ctx)
{
    (void)ctx;
    return kl__wall_ms();
}

/* Copies as much of a caller's struct as both sides know. */
static kl_rc copy_known(const kl_store_opts *given, kl_store_opts *opts)
{
    if (given->size < sizeof given->size)
        return kl__fail(KL_EINVAL, "kl_store_opts.size is %zu; start from {.size = sizeof(kl_store_opts)}",
                        given->size);
    if (given->size > sizeof *opts)
        return kl__fail(KL_EINVAL,
                        "kl_store_opts.size is %zu and this library knows %zu bytes; it is older than its header",
                        given->size, sizeof *opts);
    memcpy(opts, given, given->size);
    opts->size = sizeof *opts;
    return KL_OK;
}

kl_rc kl__store_opts_complete(const kl_store_opts *given, kl_store_opts *ret_opts)
{
    kl_store_opts opts = {.size = sizeof opts};
    kl_rc rc = given ? copy_known(given, &opts) : KL_OK;
    if (rc != KL_OK)
        return rc;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        int64_t *value = (int64_t *)(void *)((char *)&opts + settings[i].offset);
        if (*value == 0)
            *value = settings[i].standard;
        else if (*value < settings[i].min || *value > settings[i].max)
            return kl__fail(KL_EINVAL, "%s is %lld; it must be from %lld to %lld, or 0 for %lld", settings[i].name,
                            (long long)*value, (long long)settings[i].min, (long long)settings[i].max,
                            (long long)settings[i].standard);
    }
    if (!opts.now_ms)
        opts.now_ms = wall_ms;
    *ret_opts = opts;
    return KL_OK;
}

/* --- URLs --- */

static const kl_engine *const engines[] = {&kl__engine_memory, &kl__engine_disk, &kl__engine_postgres,
                                           &kl__engine_s3,     &kl__engine_http, &kl__engine_https};

static const char usages[] = "memory:, disk:PATH, postgres://HOST/DATABASE, s3://BUCKET/PREFIX or http://HOST:PORT";

enum { ENGINES = sizeof engines / sizeof engines[0], SCHEME_SHOWN_MAX = 16, SLIPS_MAX = 2 };

static char lower(char c) { return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); }

/* How many letters must be put in, left out or changed to make one word of the other (Levenshtein's distance). */
static size_t slips_between(kl_bytes typed, const char *word)
{
    const char *text = typed.data;
    size_t row[SCHEME_SHOWN_MAX + 1], length = strlen(word);
    if (typed.len > SCHEME_SHOWN_MAX || length > SCHEME_SHOWN_MAX)
        return SIZE_MAX;
    for (size_t j = 0; j <= length; j++)
        row[j] = j;
    for (size_t i = 1; i <= typed.len; i++) {
        size_t above_left = row[0];
        row[0] = i;
        for (size_t j = 1; j <= length; j++) {
            size_t best = above_left + (lower(text[i - 1]) != word[j - 1]), above = row[j];
            best = above + 1 < best ? above + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            above_left = above;
            row[j] = best;
        }
    }
    return row[length];
}

/* The engine whose scheme was probably meant, or NULL. What looks like a path is taken for a directory. */
static const kl_engine *guess(kl_bytes scheme, const char *url)
{
    if (*url == '/' || *url == '.' || *url == '~')
        return &kl__engine_disk;
    for (int i = 0; i < ENGINES; i++) {
        size_t slips = slips_between(scheme, engines[i]->scheme);
        if (slips <= SLIPS_MAX && slips < strlen(engines[i]->scheme)) /* else they have nothing in common */
            return engines[i];
    }
    return NULL;
}

static kl_rc refuse_url(const char *url, kl_bytes scheme, const char *rest)
{
    char quoted[KL_QUOTE_BYTES];
    const kl_engine *meant = guess(scheme, url);
    kl__quote(kl_str(url), quoted);
    if (!meant)
        return kl__fail(KL_EINVAL, "%s names no store; write %s", quoted, usages);
    bool path = meant == &kl__engine_disk && (*url == '/' || *url == '.' || *url == '~');
    return kl__fail(KL_EINVAL, "%s names no store; write %s: did you mean %s:%.80s?", quoted, usages, meant->scheme,
                    path ? url : rest);
}

/* libpq takes both names of its scheme, so both are taken here. */
static const kl_engine *engine_of(kl_bytes scheme)
{
    if (kl__bytes_equal(scheme, kl_str("postgresql")))
        return &kl__engine_postgres;
    for (int i = 0; i < ENGINES; i++)
        if (strlen(engines[i]->scheme) == scheme.len && memcmp(engines[i]->scheme, scheme.data, scheme.len) == 0)
            return engines[i];
    return NULL;
}

/* --- Open and close --- */

static kl_rc open_engine(const kl_engine *engine, const char *where, const kl_store_opts *opts, kl_store **ret_store)
{
    kl_store_opts complete;
    if (!ret_store)
        return kl__fail(KL_EINVAL, "ret_store is NULL; pass somewhere to put the store");
    kl_rc rc = kl__check_engine(engine);
    if (rc == KL_OK)
        rc = kl__store_opts_complete(opts, &complete);
    if (rc != KL_OK)
        return rc;
    kl_store *store = kl__alloc_aligned(alignof(kl_store), 1, sizeof *store); /* zeroed: counters and tables are 0 */
    if (!store)
        return kl__fail_memory();
    if (engine->size < sizeof *engine) {
        memcpy(&store->older, engine, engine->size);
        engine = &store->older;
    }
    store->engine = engine;
    store->opts = complete;
    int64_t began_ns = kl__monotonic_ns();
    where = where ? where : "";
    rc = engine->open(where, &store->opts, &store->self);
    if (rc == KL_EBUSY && kl__late_may_wait(store))
        rc = kl__late_wait(store, where, began_ns);
    if (rc != KL_OK) {
        kl__free(store);
        return rc;
    }
    pthread_mutex_init(&store->late.mutex, NULL);
    pthread_mutex_init(&store->partition_mutex, NULL);
    *ret_store = store;
    return KL_OK;
}

kl_rc kl_store_open_engine(const kl_engine *engine, const char *where, const kl_store_opts *opts, kl_store **ret_store)
{
    int cancel_state = kl__cancel_off();
    kl_rc rc = open_engine(engine, where, opts, ret_store);
    kl__cancel_again(cancel_state);
    return rc;
}

/* Does the caller want the disk for itself? Callers with an older header do not know the question. */
static bool wants_alone(const kl_store_opts *opts) { return opts && opts->size > FIELD(no_socket) && opts->no_socket; }

static kl_rc open_directory(const char *where, const kl_store_opts *opts, kl_store **ret_store)
{
    char path[KL_DISK_PATH_MAX + 1];
    kl_rc rc = kl__disk_path(where, path);
    if (rc != KL_OK)
        return rc;
    return kl_store_open_engine(wants_alone(opts) ? &kl__engine_disk : &kl__engine_shared, path, opts, ret_store);
}

kl_rc kl_store_open(const char *url, const kl_store_opts *opts, kl_store **ret_store)
{
    if (!url)
        return kl__fail(KL_EINVAL, "the store's URL is NULL; write %s", usages);
    kl_bytes scheme = {url, strcspn(url, ":")};
    const char *rest = url + scheme.len + (url[scheme.len] == ':');
    const kl_engine *engine = url[scheme.len] == ':' ? engine_of(scheme) : NULL;
    if (engine == &kl__engine_disk)
        return open_directory(rest, opts, ret_store);
    return engine ? kl_store_open_engine(engine, rest, opts, ret_store) : refuse_url(url, scheme, rest);
}

void kl_store_close(kl_store *store)
{
    if (!store)
        return;
    int cancel_state = kl__cancel_off();
    if (!atomic_load(&store->late.waits))
        store->engine->close(store->self);
    for (int i = 0; i < KL_PARTITION_LEVELS; i++)
        kl__free((void *)atomic_load(&store->partitions[i]));
    pthread_mutex_destroy(&store->partition_mutex);
    pthread_mutex_destroy(&store->late.mutex);
    kl__free(store->late.where);
    kl__free(store);
    kl__cancel_again(cancel_state);
}

kl_store_info kl_store_info_of(const kl_store *store)
{
    KL_ASSERT(store);
    bool is_shared = store->engine == &kl__engine_shared;
    bool is_remote = store->engine == &kl__engine_http || store->engine == &kl__engine_https;
    uint32_t can = is_shared   ? kl__shared_can(store->self)
                   : is_remote ? kl__remote_can(store->self)
                               : store->engine->can;
    return (kl_store_info){store->engine->scheme, store->engine->take_in ? can : can & ~(uint32_t)KL_STORE_INBOX};
}

uint64_t kl__store_identity(const kl_store *store)
{
    const kl_engine *engine = store->engine;
    if (atomic_load(&store->late.waits))
        return 0;
    if (engine == &kl__engine_http || engine == &kl__engine_https)
        return kl__remote_identity(store->self);
    return engine == &kl__engine_shared ? kl__shared_identity(store->self)
           : engine == &kl__engine_disk ? kl__disk_identity(store->self)
                                        : 0;
}

/* --- Every call --- */

static kl_rc refuse_no_store(void) { return kl__fail(KL_EINVAL, "the store is NULL; open one with kl_store_open"); }

kl_rc kl_store_now(kl_store *store, int64_t *ret_ms)
{
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = ret_ms ? kl__store_ready(store) : kl__fail(KL_EINVAL, "ret_ms is NULL; pass somewhere to put the time");
    if (rc == KL_OK)
        rc = store->engine->now(store->self, ret_ms);
    return kl__store_end(store, KL_CALL_NOW, begun, rc, 0, 0);
}

/* Makes the partition known to later calls of this handle. */
static kl_rc learn(kl_store *store, uint32_t partition, uint32_t shard_prefix_len)
{
    KL_ASSERT(partition > 0);
    uint32_t level = kl__partition_level(partition);
    size_t size = (size_t)1 << level;
    pthread_mutex_lock(&store->partition_mutex);
    kl__prefix_len *lens = atomic_load_explicit(&store->partitions[level], memory_order_relaxed);
    if (!lens && (lens = kl__alloc_zeroed(size, sizeof *lens)))
        atomic_store_explicit(&store->partitions[level], lens, memory_order_release);
    if (lens)
        atomic_store_explicit(&lens[partition - size], (uint8_t)shard_prefix_len, memory_order_relaxed);
    pthread_mutex_unlock(&store->partition_mutex);
    return lens ? KL_OK : kl__fail_memory();
}

kl_rc kl_store_partition(kl_store *store, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition)
{
    uint32_t partition = 0;
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__check_partition(name, shard_prefix_len, ret_partition);
    if (rc == KL_OK)
        rc = kl__store_ready(store);
    if (rc == KL_OK)
        rc = store->engine->partition(store->self, name, shard_prefix_len, &partition);
    if (rc == KL_OK)
        rc = learn(store, partition, shard_prefix_len);
    if (rc == KL_OK)
        *ret_partition = partition;
    return kl__store_end(store, KL_CALL_PARTITION, begun, rc, 0, 0);
}

/* --- Tasks --- */

kl_rc kl_store_append(kl_store *store, const kl_entry *entries, size_t count, const kl_token *token)
{
    kl_append append = {.entries = entries, .count = count, .token = token};
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__check_append(store, entries, count, &append.bytes);
    if (rc == KL_OK && count > 0)
        rc = store->engine->append(store->self, &append);
    bool ok = rc == KL_OK;
    return kl__store_end(store, KL_CALL_APPEND, begun, rc, ok ? count : 0, ok ? append.bytes : 0);
}

kl_rc kl_store_append_async(kl_store *store, const kl_entry *entries, size_t count, const kl_token *token,
                            kl_appended_fn *done, void *ctx)
{
    kl_append append = {.entries = entries, .count = count, .token = token, .done = done, .ctx = ctx};
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = done ? kl__check_append(store, entries, count, &append.bytes)
                    : kl__fail(KL_EINVAL, "done is NULL; pass a function, or call kl_store_append");
    if (rc == KL_OK && count > 0)
        rc = store->engine->append(store->self, &append);
    else if (rc == KL_OK && done)
        done(ctx, KL_OK, "");
    bool ok = rc == KL_OK;
    return kl__store_end(store, KL_CALL_APPEND_ASYNC, begun, rc, ok ? count : 0, ok ? append.bytes : 0);
}

kl_rc kl_store_scan(kl_store *store, kl_scan *scans, size_t count)
{
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    uint64_t stubs = 0;
    kl_rc rc = kl__check_scan(store, scans, count);
    if (rc == KL_OK && count > 0)
        rc = store->engine->scan(store->self, scans, count);
    for (size_t i = 0; rc == KL_OK && i < count; i++)
        stubs += scans[i].count;
    return kl__store_end(store, KL_CALL_SCAN, begun, rc, stubs, 0);
}

static uint64_t task_bytes(const kl_task *tasks, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        const kl_entry *entry = &tasks[i].entry;
        sum += entry->key.len + entry->kind.len + entry->headers.len + entry->payload.len + tasks[i].error.len +
               tasks[i].result.len;
    }
    return sum;
}

/* Counts a call that answers with tasks. */
static kl_rc count_tasks(kl_store *store, kl__call call, kl__begun begun, kl_rc rc, const kl_task *tasks,
                         const size_t *count)
{
    size_t known = rc == KL_OK ? *count : 0;
    return kl__store_end(store, call, begun, rc, known, task_bytes(tasks, known));
}

kl_rc kl_store_read(kl_store *store, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                    size_t *ret_count)
{
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    size_t read = 0;
    kl_rc rc = kl__check_read(store, refs, count, arena, ret_tasks, ret_count);
    if (rc == KL_OK && count > 0)
        rc = store->engine->read(store->self, refs, count, arena, ret_tasks, &read);
    if (rc == KL_OK || rc == KL_EDAMAGED)
        *ret_count = read;
    return count_tasks(store, KL_CALL_READ, begun, rc, ret_tasks, &read);
}

/* What counts of a settle that failed: the batches that were applied. A call that was refused whole says so in each of
 * them, so that whoever looks only there does not take it for settled. */
static void count_settled(kl_settle *batches, size_t count, kl_rc refused, uint64_t *ret_items, uint64_t *ret_bytes)
{
    *ret_items = *ret_bytes = 0;
    for (size_t i = 0; batches && i < count && count <= KL_BATCH_MAX; i++) {
        if (refused != KL_OK)
            batches[i].rc = refused;
        if (batches[i].rc != KL_OK)
            continue;
        *ret_items += batches[i].count;
        for (size_t j = 0; j < batches[i].count; j++)
            *ret_bytes += batches[i].tasks[j].error.len + batches[i].tasks[j].result.len;
    }
}

kl_rc kl_store_settle(kl_store *store, kl_settle *batches, size_t count)
{
    uint64_t items = 0, bytes = 0;
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc refused = kl__check_settle(store, batches, count, &items, &bytes), rc = refused;
    if (rc == KL_OK && count > 0)
        rc = store->engine->settle(store->self, batches, count);
    if (rc != KL_OK)
        count_settled(batches, count, refused, &items, &bytes);
    return kl__store_end(store, KL_CALL_SETTLE, begun, rc, items, bytes);
}

kl_rc kl_store_fence(kl_store *store, kl_fence *fences, size_t count)
{
    uint64_t items = 0;
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__check_fence(store, fences, count);
    bool valid = rc == KL_OK;
    if (valid && count > 0)
        rc = store->engine->fence(store->self, fences, count);
    for (size_t i = 0; fences && i < count && count <= KL_BATCH_MAX; i++) {
        if (!valid)
            fences[i].rc = rc;
        items += fences[i].rc == KL_OK;
    }
    return kl__store_end(store, KL_CALL_FENCE, begun, rc, items, 0);
}

kl_rc kl_store_counts(kl_store *store, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__check_counts(store, place, job, ret_counts);
    if (rc == KL_OK)
        rc = store->engine->counts(store->self, place, job, ret_counts);
    return kl__store_end(store, KL_CALL_COUNTS, begun, rc, 0, 0);
}

bool kl__store_is_away(const kl_store *store)
{
    return store->engine->is_away && !atomic_load(&store->late.waits) && store->engine->is_away(store->self);
}

void kl__store_cut(const kl_store *store, int64_t wait_ms)
{
    if (store->engine->cut && !atomic_load(&store->late.waits))
        store->engine->cut(store->self, wait_ms);
}

/* One that is not open yet was to be hasty from the beginning. */
kl_rc kl__store_hasten(const kl_store *store)
{
    bool may = store->engine->hasten && !atomic_load(&store->late.waits);
    return may ? store->engine->hasten(store->self) : KL_OK;
}

bool kl__store_has_lines(const kl_store *store) { return store->engine->lines != NULL; }

kl_rc kl__store_lines(kl_store *store, uint32_t partition, uint32_t *ret_priorities)
{
    kl_counts counts;
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__check_counts(store, (kl_place){partition, KL_ALL_SHARDS}, NULL, &counts);
    if (rc == KL_OK)
        rc = store->engine->lines(store->self, partition, ret_priorities);
    return kl__store_end(store, KL_CALL_COUNTS, begun, rc, 0, 0);
}

kl_rc kl__store_left(kl_store *store, const char *queue, uint64_t *ret_count)
{
    *ret_count = 0;
    if (!store->engine->left)
        return KL_OK;
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__store_ready(store);
    if (rc == KL_OK)
        rc = store->engine->left(store->self, queue, ret_count);
    return kl__store_end(store, KL_CALL_COUNTS, begun, rc, 0, 0);
}

kl_rc kl__store_refused(kl_store *store, const char *queue, kl_arena *arena, uint64_t *ret_count, const char **ret_why)
{
    *ret_count = 0;
    *ret_why = "";
    if (!store->engine->refused)
        return KL_OK;
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__store_ready(store);
    if (rc == KL_OK)
        rc = store->engine->refused(store->self, queue, arena, ret_count, ret_why);
    return kl__store_end(store, KL_CALL_COUNTS, begun, rc, 0, 0);
}

kl_rc kl__store_pulse(kl_store *store, int64_t *ret_ms, uint64_t *ret_news)
{
    *ret_news = 0;
    if (!store->engine->pulse)
        return kl_store_now(store, ret_ms);
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__store_ready(store);
    if (rc == KL_OK)
        rc = store->engine->pulse(store->self, ret_ms, ret_news);
    return kl__store_end(store, KL_CALL_NOW, begun, rc, 0, 0);
}

/* A time that has passed already is no mistake of a caller that counts down: it is not waited for. */
kl_rc kl_store_wait(kl_store *store, uint32_t partition, int64_t wait_ms, uint64_t *seen)
{
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__check_wait(store, partition, seen);
    if (rc == KL_OK)
        rc = store->engine->wait(store->self, partition, wait_ms > 0 ? wait_ms : 0, seen);
    return kl__store_end(store, KL_CALL_WAIT, begun, rc, 0, 0);
}

/* --- Taking in --- */

struct taking {
    kl_store *store;
    kl_take_fn *take;
    void *ctx;
    uint64_t bytes; /* of what is appended */
};

/* What the caller wants appended is looked at like any append. */
static kl_rc take_checked(void *ctx, const kl_handed *handed, size_t count, kl_taken *ret_taken)
{
    struct taking *taking = ctx;
    kl_taken taken = {0};
    size_t bytes = 0;
    kl_rc rc = taking->take(taking->ctx, handed, count, &taken);
    if (rc == KL_OK)
        rc = kl__check_append(taking->store, taken.entries, taken.entry_count, &bytes);
    if (rc == KL_OK && (taken.count > count || taken.entry_count > taken.count || (taken.refused && taken.entry_count)))
        rc = kl__fail(KL_EINVAL, "of %zu tasks %zu are taken in as %zu entries; it must be as many or fewer each time",
                      count, taken.count, taken.entry_count);
    for (size_t i = 0; rc == KL_OK && taken.which && i < taken.count; i++)
        if (taken.which[i] >= count || (i > 0 && taken.which[i] <= taken.which[i - 1]))
            rc = kl__fail(KL_EINVAL, "which[%zu] is %zu; it must be below %zu, and ascend", i, taken.which[i], count);
    taking->bytes = bytes;
    if (rc == KL_OK)
        *ret_taken = taken;
    return rc;
}

kl_rc kl_store_take_in(kl_store *store, const char *queue, int64_t wait_ms, size_t max, kl_take_fn *take, void *ctx,
                       size_t *ret_count)
{
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    struct taking taking = {store, take, ctx, 0};
    size_t count = 0;
    kl_rc rc = kl__check_take_in(store, queue, max, take, ret_count);
    if (rc == KL_OK)
        rc = kl__store_ready(store);
    if (rc == KL_OK)
        rc = store->engine->take_in(store->self, queue, wait_ms > 0 ? wait_ms : 0, max, take_checked, &taking, &count);
    if (rc == KL_OK)
        *ret_count = count;
    return kl__store_end(store, KL_CALL_TAKE_IN, begun, rc, count, taking.bytes);
}

/* --- What is finished --- */

kl_rc kl_store_results(kl_store *store, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                       kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__check_results(store, place, job, max, arena, ret_tasks, ret_count);
    if (rc == KL_OK)
        rc = store->engine->results(store->self, place, job, after, max, arena, ret_tasks, ret_count);
    return count_tasks(store, KL_CALL_RESULTS, begun, rc, ret_tasks, ret_count);
}

kl_rc kl_store_find(kl_store *store, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__check_find(store, find, arena, ret_tasks, ret_count);
    if (rc == KL_OK)
        rc = store->engine->find(store->self, find, arena, ret_tasks, ret_count);
    return count_tasks(store, KL_CALL_FIND, begun, rc, ret_tasks, ret_count);
}

kl_rc kl_store_forget(kl_store *store, kl_place place, const kl_task_id *ids, size_t count)
{
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__check_forget(store, place, ids, count);
    if (rc == KL_OK && count > 0)
        rc = store->engine->forget(store->self, place, ids, count);
    return kl__store_end(store, KL_CALL_FORGET, begun, rc, rc == KL_OK ? count : 0, 0);
}

/* --- Records --- */

static uint64_t record_bytes(const kl_record *records, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += records[i].name.len + records[i].value.len;
    return sum;
}

kl_rc kl_store_get(kl_store *store, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__check_get(names, count, arena, ret_records);
    if (rc == KL_OK)
        rc = kl__store_ready(store);
    if (rc == KL_OK && count > 0)
        rc = store->engine->get(store->self, names, count, arena, ret_records);
    size_t known = rc == KL_OK ? count : 0;
    return kl__store_end(store, KL_CALL_GET, begun, rc, known, record_bytes(ret_records, known));
}

kl_rc kl_store_put(kl_store *store, kl_write *writes, size_t count)
{
    uint64_t items = 0, bytes = 0;
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__check_put(writes, count);
    if (rc == KL_OK)
        rc = kl__store_ready(store);
    bool valid = rc == KL_OK;
    if (valid && count > 0)
        rc = store->engine->put(store->self, writes, count);
    for (size_t i = 0; writes && i < count && count <= KL_BATCH_MAX; i++) {
        if (!valid)
            writes[i].rc = rc;
        items += writes[i].rc == KL_OK;
        bytes += writes[i].rc == KL_OK ? writes[i].name.len + (writes[i].remove ? 0 : writes[i].value.len) : 0;
    }
    return kl__store_end(store, KL_CALL_PUT, begun, rc, items, bytes);
}

kl_rc kl_store_list(kl_store *store, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena,
                    kl_record *ret_records, size_t *ret_count)
{
    if (!store)
        return refuse_no_store();
    kl__begun begun = kl__store_begin();
    kl_rc rc = kl__check_list(prefix, after, max, arena, ret_records, ret_count);
    if (rc == KL_OK)
        rc = kl__store_ready(store);
    if (rc == KL_OK)
        rc = store->engine->list(store->self, prefix, after, max, arena, ret_records, ret_count);
    size_t known = rc == KL_OK ? *ret_count : 0;
    return kl__store_end(store, KL_CALL_LIST, begun, rc, known, record_bytes(ret_records, known));
}
