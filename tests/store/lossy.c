/* lossy.c - passes calls on, and loses some of the answers. */
#include "store/lossy.h"

#include "base/base.h"
#include "base/random.h"

enum fate { GOES_WELL, REPLY_LOST, REQUEST_LOST };

enum { REPLIES_LOST = 10, REQUESTS_LOST = 4 };

/* Threads share one stream of numbers. */
static uint64_t draw(struct lossy *lossy, uint64_t bound)
{
    uint64_t state = atomic_fetch_add(&lossy->random, 0x9e3779b97f4a7c15u);
    return kl__random_below(&state, bound);
}

static enum fate choose(struct lossy *lossy)
{
    uint64_t dice = draw(lossy, 100);
    if (dice < lossy->replies_lost && !lossy->down) {
        atomic_fetch_add(&lossy->lost_replies, 1);
        return REPLY_LOST;
    }
    if (dice < lossy->replies_lost + lossy->requests_lost || lossy->down) {
        atomic_fetch_add(&lossy->lost_requests, 1);
        return REQUEST_LOST;
    }
    return GOES_WELL;
}

static kl_rc lose(void) { return kl__fail(LOSSY_RC, "no answer has come; make the call again"); }

/* Makes the call unless the request is lost, and returns what the caller is to see. */
#define PASS_ON(self, call)                                                                                            \
    do {                                                                                                               \
        enum fate fate_ = choose(self);                                                                                \
        kl_rc rc_ = fate_ == REQUEST_LOST ? KL_OK : (call);                                                            \
        return fate_ == GOES_WELL ? rc_ : lose();                                                                      \
    } while (0)

/* The same where the answer stands in an rc field of each item as well. */
#define PASS_ON_ITEMS(self, call, items, count)                                                                        \
    do {                                                                                                               \
        enum fate fate_ = choose(self);                                                                                \
        kl_rc rc_ = fate_ == REQUEST_LOST ? KL_OK : (call);                                                            \
        for (size_t i_ = 0; fate_ != GOES_WELL && i_ < (count); i_++)                                                  \
            (items)[i_].rc = LOSSY_RC;                                                                                 \
        return fate_ == GOES_WELL ? rc_ : lose();                                                                      \
    } while (0)

/* kl_engine.open has no place for a context, so it is left here by lossy_open. */
static _Thread_local struct lossy *opening;

static kl_rc open_lossy(const char *where, const kl_store_opts *opts, void **ret_self)
{
    (void)where, (void)opts;
    *ret_self = opening;
    return KL_OK;
}

static void close_lossy(void *self) { (void)self; }

static kl_rc lossy_now(void *self, int64_t *ret_ms)
{
    struct lossy *lossy = self;
    PASS_ON(lossy, kl_store_now(lossy->inner, ret_ms));
}

static kl_rc lossy_partition(void *self, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition)
{
    struct lossy *lossy = self;
    PASS_ON(lossy, kl_store_partition(lossy->inner, name, shard_prefix_len, ret_partition));
}

/* Who is to be told of an append that loses its reply. */
struct silenced {
    kl_appended_fn *done;
    void *ctx;
};

static void tell_of_loss(void *ctx, kl_rc rc, const char *error)
{
    struct silenced silenced = *(struct silenced *)ctx;
    (void)rc, (void)error;
    kl__free(ctx);
    silenced.done(silenced.ctx, LOSSY_RC, "no answer has come; make the call again");
}

static kl_rc append_silenced(struct lossy *lossy, const kl_append *append)
{
    struct silenced *silenced = kl__alloc(sizeof *silenced);
    if (!silenced)
        return kl__fail_memory();
    *silenced = (struct silenced){append->done, append->ctx};
    kl_rc rc =
        kl_store_append_async(lossy->inner, append->entries, append->count, append->token, tell_of_loss, silenced);
    if (rc != KL_OK)
        kl__free(silenced);
    return rc;
}

static kl_rc lossy_append(void *self, const kl_append *append)
{
    struct lossy *lossy = self;
    if (!append->done)
        PASS_ON(lossy, kl_store_append(lossy->inner, append->entries, append->count, append->token));
    enum fate fate = choose(lossy);
    if (fate == REQUEST_LOST)
        return lose();
    if (fate == REPLY_LOST)
        return append_silenced(lossy, append);
    return kl_store_append_async(lossy->inner, append->entries, append->count, append->token, append->done,
                                 append->ctx);
}

static kl_rc lossy_scan(void *self, kl_scan *scans, size_t count)
{
    struct lossy *lossy = self;
    PASS_ON(lossy, kl_store_scan(lossy->inner, scans, count));
}

static kl_rc lossy_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                        size_t *ret_count)
{
    struct lossy *lossy = self;
    PASS_ON(lossy, kl_store_read(lossy->inner, refs, count, arena, ret_tasks, ret_count));
}

static kl_rc lossy_settle(void *self, kl_settle *batches, size_t count)
{
    struct lossy *lossy = self;
    PASS_ON_ITEMS(lossy, kl_store_settle(lossy->inner, batches, count), batches, count);
}

static kl_rc lossy_fence(void *self, kl_fence *fences, size_t count)
{
    struct lossy *lossy = self;
    PASS_ON_ITEMS(lossy, kl_store_fence(lossy->inner, fences, count), fences, count);
}

static kl_rc lossy_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts)
{
    struct lossy *lossy = self;
    PASS_ON(lossy, kl_store_counts(lossy->inner, place, job, ret_counts));
}

static kl_rc lossy_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen)
{
    struct lossy *lossy = self;
    PASS_ON(lossy, kl_store_wait(lossy->inner, partition, wait_ms, seen));
}

static kl_rc lossy_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                           kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    struct lossy *lossy = self;
    PASS_ON(lossy, kl_store_results(lossy->inner, place, job, after, max, arena, ret_tasks, ret_count));
}

static kl_rc lossy_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count)
{
    struct lossy *lossy = self;
    PASS_ON(lossy, kl_store_find(lossy->inner, find, arena, ret_tasks, ret_count));
}

static kl_rc lossy_forget(void *self, kl_place place, const kl_task_id *ids, size_t count)
{
    struct lossy *lossy = self;
    PASS_ON(lossy, kl_store_forget(lossy->inner, place, ids, count));
}

static kl_rc lossy_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records)
{
    struct lossy *lossy = self;
    PASS_ON(lossy, kl_store_get(lossy->inner, names, count, arena, ret_records));
}

static kl_rc lossy_put(void *self, kl_write *writes, size_t count)
{
    struct lossy *lossy = self;
    PASS_ON_ITEMS(lossy, kl_store_put(lossy->inner, writes, count), writes, count);
}

static kl_rc lossy_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena,
                        kl_record *ret_records, size_t *ret_count)
{
    struct lossy *lossy = self;
    PASS_ON(lossy, kl_store_list(lossy->inner, prefix, after, max, arena, ret_records, ret_count));
}

static bool lossy_is_away(void *self) { return ((struct lossy *)self)->tells; }

kl_rc lossy_open(struct lossy *lossy, kl_store *inner, uint64_t seed, kl_store **ret_store)
{
    *lossy = (struct lossy){.inner = inner, .replies_lost = REPLIES_LOST, .requests_lost = REQUESTS_LOST};
    atomic_store(&lossy->random, seed);
    lossy->engine = (kl_engine){
        .size = sizeof lossy->engine,
        .scheme = "lossy",
        .usage = "lossy:",
        .can = kl_store_info_of(inner).can,
        .open = open_lossy,
        .close = close_lossy,
        .now = lossy_now,
        .partition = lossy_partition,
        .append = lossy_append,
        .scan = lossy_scan,
        .read = lossy_read,
        .settle = lossy_settle,
        .fence = lossy_fence,
        .counts = lossy_counts,
        .wait = lossy_wait,
        .results = lossy_results,
        .find = lossy_find,
        .forget = lossy_forget,
        .get = lossy_get,
        .put = lossy_put,
        .list = lossy_list,
        .is_away = lossy_is_away,
    };
    opening = lossy;
    return kl_store_open_engine(&lossy->engine, "", NULL, ret_store);
}
