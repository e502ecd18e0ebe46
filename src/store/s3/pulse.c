/* pulse.c - listings: where logs of tasks end, and which lines are in use.
 *
 * From: refresh.c, append.c.  To: the shards.
 *
 * A process that serves many shards looks at all of them by one listing of records, marks and tasks, the pulse, less
 * and less often while nothing comes. Where the bucket is too full for one page, shards are asked one by one. */
#include <stdio.h>
#include <stdlib.h>

#include "store/s3/s3.h"

enum { QUIET = 4, FULL_MS = 1000 };

/* What was known before the clock jumped may be much older than it seems: this machine stood still meanwhile. */
bool kl__s3_is_fresh(kl__s3 *s3, int64_t since_ns, int64_t limit_ms)
{
    return since_ns != 0 && kl__monotonic_ns() - since_ns < limit_ms * 1000000 &&
           since_ns >= kl__s3_http_jumped(s3->http);
}

/* --- Where a log of tasks ends --- */

/* The number in ".../<16 hex digits>.json"; 0: it is no such name. */
static uint64_t number_of(const char *name)
{
    const char *slash = strrchr(name, '/');
    char *end;
    if (!slash || strlen(slash + 1) != 21 || strcmp(slash + 17, ".json") != 0)
        return 0;
    uint64_t number = strtoull(slash + 1, &end, 16);
    return end == slash + 17 ? number : 0;
}

static bool is_seal(const kl__s3_listed *item) { return item->size == strlen(KL_S3_SEAL); }

/* The names that stand for the shard's task objects, and the one that a page is to begin behind. */
struct asked {
    char prefix[KL_S3_NAME_MAX], after[KL_S3_NAME_MAX + 32];
};

static void ask_tasks(const kl__s3_shard *shard, uint64_t number, struct asked *asked)
{
    snprintf(asked->prefix, sizeof asked->prefix, "tasks/%s/%s/", shard->partition->name, shard->digits);
    snprintf(asked->after, sizeof asked->after, "%s%016llx.json", asked->prefix, (unsigned long long)number);
}

static kl__s3_page page_of(const kl__s3_names *names)
{
    kl__s3_page page = {.more = names->more};
    for (size_t i = 0; i < names->count; i++) {
        uint64_t listed = number_of(names->items[i].name);
        if (!listed)
            continue;
        page.first = page.first ? page.first : listed;
        page.last = listed;
        page.sealed = is_seal(&names->items[i]);
    }
    return page;
}

kl_rc kl__s3_list_tasks(kl__s3 *s3, const kl__s3_shard *shard, uint64_t number, kl__s3_page *ret_page)
{
    struct asked asked;
    kl__s3_names names;
    ask_tasks(shard, number, &asked);
    *ret_page = (kl__s3_page){0};
    kl_rc rc = kl__s3_list_page(s3, asked.prefix, asked.after, 0, &names);
    if (rc != KL_OK)
        return rc;
    *ret_page = page_of(&names);
    kl__s3_names_free(&names);
    return KL_OK;
}

static void learn_tail(kl__s3 *s3, kl__s3_shard *shard, uint64_t tail, bool sealed, int64_t asked_ns)
{
    kl__memory_enter(s3->memory);
    if (tail >= shard->tail) {
        shard->tail = tail;
        shard->sealed = sealed;
    }
    shard->tail_ns = asked_ns;
    kl__memory_leave(s3->memory);
}

/* A look for the end of a log. */
struct search {
    kl__s3_shard *shard;
    uint64_t known; /* it goes at least to here */
    bool sealed;    /* with a seal */
    bool more;
    int64_t asked_ns;
};

/* False: the page has none. */
static bool go_on(struct search *search, const kl__s3_page *page)
{
    search->more = page->more;
    if (!page->last)
        return false;
    search->known = page->last;
    search->sealed = page->sealed;
    return true;
}

static struct search begin_search(kl__s3 *s3, kl__s3_shard *shard)
{
    struct search search = {.shard = shard, .asked_ns = kl__monotonic_ns()};
    kl__memory_enter(s3->memory);
    search.known = shard->tail ? shard->tail - 1 : 0;
    kl__memory_leave(s3->memory);
    return search;
}

/* Behind the first page. Steps double while there is something behind them, and then halve: some twenty listings where
 * a page would not do. */
static kl_rc end_search(kl__s3 *s3, struct search *search)
{
    uint64_t step = 4096, highest = UINT64_MAX >> 20;
    kl__s3_page page;
    kl_rc rc = KL_OK;
    while (rc == KL_OK && search->more) {
        uint64_t from = search->known + step < highest ? search->known + step : highest;
        search->asked_ns = kl__monotonic_ns();
        rc = kl__s3_list_tasks(s3, search->shard, from, &page);
        if (rc != KL_OK)
            break;
        if (go_on(search, &page)) {
            step *= 2;
            continue;
        }
        highest = from;
        step = (highest - search->known) / 2;
        search->more = highest - search->known > 1;
        if (step > 1000 || !search->more)
            continue;
        rc = kl__s3_list_tasks(s3, search->shard, search->known, &page);
        (void)go_on(search, &page);
    }
    if (rc == KL_OK)
        learn_tail(s3, search->shard, search->known, search->sealed, search->asked_ns);
    return rc;
}

kl_rc kl__s3_find_tail(kl__s3 *s3, kl__s3_shard *shard) { return kl__s3_find_tails(s3, &shard, 1); }

kl_rc kl__s3_find_tails(kl__s3 *s3, kl__s3_shard **shards, size_t count)
{
    struct search *searches = kl__alloc_zeroed(count ? count : 1, sizeof *searches);
    struct asked *asked = kl__alloc_zeroed(count ? count : 1, sizeof *asked);
    kl__s3_listing *listings = kl__alloc_zeroed(count ? count : 1, sizeof *listings);
    kl_rc rc = searches && asked && listings ? KL_OK : kl__fail_memory();
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        searches[i] = begin_search(s3, shards[i]);
        ask_tasks(shards[i], searches[i].known, &asked[i]);
        listings[i] = (kl__s3_listing){.prefix = asked[i].prefix, .after = asked[i].after};
    }
    if (rc == KL_OK)
        rc = kl__s3_list_pages(s3, listings, count);
    for (size_t i = 0; rc == KL_OK && i < count; i++) {
        kl__s3_page page = page_of(&listings[i].names);
        (void)go_on(&searches[i], &page);
        rc = end_search(s3, &searches[i]);
    }
    for (size_t i = 0; listings && i < count; i++)
        kl__s3_names_free(&listings[i].names);
    kl__free(listings);
    kl__free(asked);
    kl__free(searches);
    return rc;
}

/* --- The pulse --- */

static kl__s3_partition *partition_named(kl__s3 *s3, const char *name, size_t len)
{
    for (uint32_t i = 0; i < s3->partition_count; i++)
        if (strlen(s3->partitions[i]->name) == len && memcmp(s3->partitions[i]->name, name, len) == 0)
            return s3->partitions[i];
    return NULL;
}

/* The shard that "<partition>/<shard>/..." is of, made if there is none; NULL: it is none of ours, or (*failed) no
 * memory. */
static kl__s3_shard *shard_named(kl__s3 *s3, const char *name, bool *failed)
{
    const char *slash = strchr(name, '/');
    kl__s3_partition *partition = slash ? partition_named(s3, name, (size_t)(slash - name)) : NULL;
    unsigned long number = slash ? strtoul(slash + 1, NULL, 16) : 0;
    if (!partition || number >= partition->shard_count)
        return NULL;
    kl__s3_shard *shard = kl__s3_shard_make(s3, (kl_place){partition->number, (uint32_t)number});
    *failed |= !shard;
    return shard;
}

/* special/<partition>/<shard>/<line>-<period> */
static void see_mark(kl__s3 *s3, const char *name, bool *failed)
{
    kl__s3_shard *shard = shard_named(s3, name + strlen("special/"), failed);
    kl__s3_mark mark;
    if (!shard || !kl__s3_read_mark(name, &mark))
        return;
    if (shard->marks_look != s3->marks_look) {
        shard->marks_look = s3->marks_look;
        shard->marks_old = shard->marks_young = 0;
    }
    if (kl__s3_mark_is_old(&mark, s3->memory->now_ms))
        shard->marks_old |= UINT64_C(1) << mark.line;
    else
        shard->marks_young |= UINT64_C(1) << mark.line;
}

/* All marks of the partition have been seen. */
static void end_marks(const kl__s3 *s3, kl__s3_partition *partition, int64_t asked_ns)
{
    partition->marks_look = s3->marks_look;
    partition->marks_ns = asked_ns;
}

/* tasks/<partition>/<shard>/<number>.json. True: it is news. */
static bool see_task(kl__s3 *s3, const kl__s3_listed *item, bool *failed)
{
    uint64_t number = number_of(item->name);
    kl__s3_shard *shard = number ? shard_named(s3, item->name + strlen("tasks/"), failed) : NULL;
    if (!shard || number < shard->tail)
        return false;
    bool news = number > shard->tail;
    shard->tail = number;
    shard->sealed = is_seal(item);
    return news;
}

static void end_pulse(kl__s3 *s3, int64_t asked_ns)
{
    for (uint32_t i = 0; i < s3->partition_count; i++) {
        kl__s3_partition *partition = s3->partitions[i];
        for (uint32_t j = 0; j < partition->shard_count; j++) {
            kl__s3_shard *shard = partition->shards[j];
            if (!shard)
                continue;
            shard->tail_ns = asked_ns;
            shard->ended = shard->taken >= shard->tail;
        }
    }
}

static void slow_down(kl__s3 *s3, bool news)
{
    s3->pulse_quiet = news ? 0 : s3->pulse_quiet + 1;
    if (!s3->pulse_whole) /* it shows little: shards are asked one by one */
        s3->pulse_age_ms = s3->poll_ms < FULL_MS ? s3->poll_ms : FULL_MS;
    else if (s3->pulse_quiet < QUIET)
        s3->pulse_age_ms = KL_S3_POLL_MIN_MS;
    else
        s3->pulse_age_ms = s3->pulse_age_ms * 2 < s3->poll_ms ? s3->pulse_age_ms * 2 : s3->poll_ms;
}

/* Marks and tasks of a page. *ret_news: there is something new. */
static kl_rc see_page(kl__s3 *s3, const kl__s3_names *names, int64_t asked_ns, bool *ret_news)
{
    const char *last = names->count ? names->items[names->count - 1].name : "";
    bool news = false, failed = false;
    kl__memory_enter(s3->memory);
    s3->marks_look++;
    for (size_t i = 0; i < names->count; i++) {
        if (strncmp(names->items[i].name, "tasks/", 6) == 0)
            news |= see_task(s3, &names->items[i], &failed);
        else if (strncmp(names->items[i].name, "special/", 8) == 0)
            see_mark(s3, names->items[i].name, &failed);
    }
    for (uint32_t i = 0; !failed && i < s3->partition_count; i++)
        if (!names->more || strncmp(last, "tasks/", 6) >= 0)
            end_marks(s3, s3->partitions[i], asked_ns);
    if (!failed && !names->more)
        end_pulse(s3, asked_ns);
    kl__memory_leave(s3->memory);
    *ret_news = news;
    if (failed)
        return kl__fail_memory();
    s3->pulse_whole = !names->more;
    return KL_OK;
}

static bool goes_beyond_records(const kl__s3_names *names)
{
    return !names->more || (names->count && strncmp(names->items[names->count - 1].name, "special/", 8) >= 0);
}

/* Records, then marks and tasks: one page where there are few, and a second one where records alone fill the first. */
static kl_rc make_pulse(kl__s3 *s3)
{
    kl__s3_names names;
    int64_t asked_ns = kl__monotonic_ns();
    kl_rc rc = kl__s3_list_page(s3, "", "records", 0, &names);
    if (rc != KL_OK)
        return rc;
    bool beyond = goes_beyond_records(&names), news = false;
    rc = kl__s3_records_seen(s3, &names, beyond, asked_ns);
    if (rc == KL_OK && !beyond) {
        kl__s3_names_free(&names);
        rc = kl__s3_list_page(s3, "", "special", 0, &names);
    }
    if (rc == KL_OK)
        rc = see_page(s3, &names, asked_ns, &news);
    kl__s3_names_free(&names);
    if (rc != KL_OK)
        return rc;
    slow_down(s3, news);
    s3->pulse_ns = asked_ns;
    return KL_OK;
}

kl_rc kl__s3_pulse(kl__s3 *s3, int64_t age_ms)
{
    pthread_mutex_lock(&s3->pulse_mutex);
    int64_t limit_ms = age_ms < 0 ? s3->pulse_age_ms : age_ms;
    kl_rc rc = kl__s3_is_fresh(s3, s3->pulse_ns, limit_ms) ? KL_OK : make_pulse(s3);
    pthread_mutex_unlock(&s3->pulse_mutex);
    return rc;
}

void kl__s3_pulse_renew(kl__s3 *s3)
{
    pthread_mutex_lock(&s3->pulse_mutex);
    s3->pulse_ns = 0;
    pthread_mutex_unlock(&s3->pulse_mutex);
}

kl_rc kl__s3_discover(kl__s3 *s3, kl__s3_shard **shards, size_t count)
{
    bool owned = false;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < count; i++)
        owned |= shards[i]->owned;
    kl__memory_leave(s3->memory);
    kl_rc rc = count > KL_S3_PROBES || owned ? kl__s3_pulse(s3, owned ? -1 : 0) : KL_OK;
    kl__memory_enter(s3->memory);
    for (size_t i = 0; i < count; i++) {
        bool known = (count > KL_S3_PROBES || owned) && s3->pulse_whole;
        int64_t rest_ms = s3->pulse_whole ? s3->pulse_age_ms : shards[i]->rest_ms;
        bool rests = kl__s3_is_fresh(s3, shards[i]->tail_ns, shards[i]->owned ? rest_ms : KL_S3_FRESH_MS);
        shards[i]->ended = (known || rests || shards[i]->sealed) && shards[i]->taken >= shards[i]->tail;
    }
    kl__memory_leave(s3->memory);
    return rc;
}

/* --- Marks of lines --- */

/* All pages of marks of a partition. */
static kl_rc list_marks(kl__s3 *s3, kl__s3_partition *partition)
{
    char prefix[KL_S3_NAME_MAX], after[KL_S3_NAME_MAX] = "";
    kl_rc rc = KL_OK;
    int64_t asked_ns = kl__monotonic_ns();
    bool more = true;
    snprintf(prefix, sizeof prefix, "special/%s/", partition->name);
    kl__memory_enter(s3->memory);
    s3->marks_look++;
    kl__memory_leave(s3->memory);
    while (rc == KL_OK && more) {
        kl__s3_names names = {0};
        rc = kl__s3_list_page(s3, prefix, *after ? after : NULL, 0, &names);
        bool failed = false;
        kl__memory_enter(s3->memory);
        for (size_t i = 0; rc == KL_OK && i < names.count; i++)
            see_mark(s3, names.items[i].name, &failed);
        kl__memory_leave(s3->memory);
        rc = failed ? kl__fail_memory() : rc;
        if (names.count)
            snprintf(after, sizeof after, "%s", names.items[names.count - 1].name);
        more = names.more && names.count;
        kl__s3_names_free(&names);
    }
    if (rc != KL_OK)
        return rc;
    kl__memory_enter(s3->memory);
    end_marks(s3, partition, asked_ns);
    kl__memory_leave(s3->memory);
    return KL_OK;
}

kl_rc kl__s3_see_marks(kl__s3 *s3, kl__s3_partition *partition)
{
    pthread_mutex_lock(&s3->pulse_mutex); /* one look at marks at a time */
    kl__memory_enter(s3->memory);
    bool fresh = kl__s3_is_fresh(s3, partition->marks_ns, s3->pulse_age_ms);
    kl__memory_leave(s3->memory);
    kl_rc rc = fresh ? KL_OK : list_marks(s3, partition);
    pthread_mutex_unlock(&s3->pulse_mutex);
    return rc;
}
