/* settings.c - what can be stated of a queue: ranges, defaults, JSON and sentences, from one table.
 *
 * From: queue.c (options), descriptor.c (the record).
 *
 * In the record stand all settings, also those that nobody stated: a queue stays as it was made when a later version of
 * the library has other defaults. "No limit" and "not at all" stand there as "none", because a 64-bit number is not one
 * to every language. */
#include "base/layout.h"
#include "queue/inside.h"

#define SECOND        INT64_C(1000)
#define DAY           (SECOND * 3600 * 24)
#define DURATION_MAX  (366 * DAY) /* far below what sums with a clock could overflow */
#define COUNT_MAX     INT64_C(1000000000)

#define URL_BYTES_MAX 1024 /* KL_QUEUE_STORES_MAX of them are a sixteenth of what a record may take */
#define ORIGIN_MAX    200  /* bytes: it must fit into a sentence */

/* What none means, in a setting that may have none. */
enum none { NEVER = 0, FOREVER, NOT_AT_ALL };

struct setting {
    const char *name;
    size_t offset;
    int64_t standard, min, max;
    enum none none;
};

#define FIELD(field) #field, offsetof(kl_queue_opts, field)

/* The first two are the layout's, and stand elsewhere in the record. */
static const struct setting settings[] = {
    {FIELD(partitions), 1, 1, KL_PARTITIONS_MAX, NEVER},
    {FIELD(shard_prefix_len), 1, 1, KL_SHARD_PREFIX_LEN_MAX, NEVER},
    {FIELD(attempts_max), 8, 1, KL_ATTEMPTS_MAX, NEVER},
    {FIELD(backoff_base_ms), SECOND, 1, DURATION_MAX, NEVER},
    {FIELD(backoff_max_ms), SECOND * 600, 1, DURATION_MAX, NEVER},
    {FIELD(timeout_ms), KL_FOREVER, 1, DURATION_MAX, FOREVER},
    {FIELD(lease_ms), SECOND * 10, SECOND, SECOND * 3600, NEVER},
    {FIELD(keep_done_ms), KL_NO_WAIT, 1, DURATION_MAX, NOT_AT_ALL},
    {FIELD(keep_dead_ms), DAY * 30, 1, DURATION_MAX, NEVER},
    {FIELD(rate), KL_FOREVER, 1, COUNT_MAX, FOREVER},
    {FIELD(burst), KL_FOREVER, 1, COUNT_MAX, FOREVER},
    {FIELD(concurrency), KL_FOREVER, 1, COUNT_MAX, FOREVER},
};

enum { SETTINGS = sizeof settings / sizeof settings[0], LAYOUT_SETTINGS = 2 };

static const char *const policies[] = {"", "continue", "halt", "drain"}; /* by kl_head_policy */

enum { POLICIES = sizeof policies / sizeof policies[0] };

static int64_t *value_in(kl_queue_opts *opts, const struct setting *setting)
{
    return (int64_t *)(void *)((char *)opts + setting->offset);
}

static int64_t value_of(const kl_queue_opts *opts, const struct setting *setting)
{
    return *(const int64_t *)(const void *)((const char *)opts + setting->offset);
}

static int64_t none_of(const struct setting *setting) { return setting->none == FOREVER ? KL_FOREVER : KL_NO_WAIT; }

static bool is_none(const struct setting *setting, int64_t value)
{
    return setting->none != NEVER && value == none_of(setting);
}

bool kl__settings_range(size_t offset, int64_t *ret_min, int64_t *ret_max, int64_t *ret_none)
{
    for (int i = 0; i < SETTINGS; i++) {
        if (settings[i].offset != offset)
            continue;
        *ret_min = settings[i].min;
        *ret_max = settings[i].max;
        *ret_none = settings[i].none == NEVER ? 0 : none_of(&settings[i]);
        return true;
    }
    return false;
}

const char *kl__policy_name(kl_head_policy policy) { return policies[(unsigned)policy < POLICIES ? policy : 0]; }

kl_head_policy kl__policy_parse(const char *text)
{
    for (int i = KL_HEAD_CONTINUE; i < POLICIES; i++)
        if (strcmp(text, policies[i]) == 0)
            return (kl_head_policy)i;
    return KL_HEAD_UNSET;
}

/* --- Options --- */

static kl_rc copy_known(const kl_queue_opts *given, kl_queue_opts *opts)
{
    if (given->size < sizeof given->size)
        return kl__fail(KL_EINVAL, "kl_queue_opts.size is %zu; start from {.size = sizeof(kl_queue_opts)}",
                        given->size);
    if (given->size > sizeof *opts)
        return kl__fail(KL_EINVAL,
                        "kl_queue_opts.size is %zu and this library knows %zu bytes; it is older than its header",
                        given->size, sizeof *opts);
    memcpy(opts, given, given->size);
    opts->size = sizeof *opts;
    return KL_OK;
}

static kl_rc check_range(const struct setting *setting, int64_t value)
{
    static const char *const also[] = {"", ", or KL_FOREVER for no limit", ", or KL_NO_WAIT for not at all"};
    if (value == 0 || is_none(setting, value) || (value >= setting->min && value <= setting->max))
        return KL_OK;
    return kl__fail(KL_EINVAL, "%s is %lld; it must be from %lld to %lld%s", setting->name, (long long)value,
                    (long long)setting->min, (long long)setting->max, also[setting->none]);
}

static kl_rc check_url(const kl_queue_opts *opts, size_t index)
{
    const char *url = opts->stores[index];
    if (!url)
        return kl__fail(KL_EINVAL, "stores[%zu] is NULL; write \"\" for the queue's own store", index);
    if (strlen(url) > URL_BYTES_MAX)
        return kl__fail(KL_EINVAL, "stores[%zu] has %zu bytes; a store's URL has up to %d", index, strlen(url),
                        URL_BYTES_MAX);
    return KL_OK;
}

static kl_rc check_stores(const kl_queue_opts *opts)
{
    const char *seen[KL_QUEUE_STORES_MAX];
    size_t count = 0;
    if (opts->store_count > KL_PARTITIONS_MAX)
        return kl__fail(KL_EINVAL, "store_count is %zu; a queue has up to %d partitions", opts->store_count,
                        KL_PARTITIONS_MAX);
    if (opts->store_count > 0 && !opts->stores)
        return kl__fail(KL_EINVAL, "store_count is %zu and stores is NULL; pass the URL of each partition's store",
                        opts->store_count);
    for (size_t i = 0, j; i < opts->store_count; i++) {
        kl_rc rc = check_url(opts, i);
        if (rc != KL_OK)
            return rc;
        for (j = 0; j < count && strcmp(seen[j], opts->stores[i]) != 0;)
            j++;
        if (j < count || !*opts->stores[i])
            continue;
        if (count == KL_QUEUE_STORES_MAX)
            return kl__fail(KL_EINVAL, "stores[%zu] is one store too many; a queue lies in up to %d beside its own", i,
                            KL_QUEUE_STORES_MAX);
        seen[count++] = opts->stores[i];
    }
    return KL_OK;
}

static kl_rc check_origin(const kl_queue_opts *opts)
{
    if (opts->origin && strlen(opts->origin) > ORIGIN_MAX)
        return kl__fail(KL_EINVAL, "origin has %zu bytes; up to %d fit into a sentence, so make it shorter",
                        strlen(opts->origin), ORIGIN_MAX);
    return KL_OK;
}

kl_rc kl__settings_take(const kl_queue_opts *given, kl_queue_opts *ret_stated)
{
    kl_queue_opts opts = {.size = sizeof opts};
    kl_rc rc = given ? copy_known(given, &opts) : KL_OK;
    for (int i = 0; rc == KL_OK && i < SETTINGS; i++)
        rc = check_range(&settings[i], value_of(&opts, &settings[i]));
    if (rc == KL_OK && (unsigned)opts.head_policy >= POLICIES)
        rc = kl__fail(KL_EINVAL, "head_policy is %d; it must be KL_HEAD_CONTINUE, KL_HEAD_HALT or KL_HEAD_DRAIN",
                      (int)opts.head_policy);
    if (rc == KL_OK)
        rc = check_stores(&opts);
    if (rc == KL_OK)
        rc = check_origin(&opts);
    if (rc == KL_OK)
        *ret_stated = opts;
    return rc;
}

kl_queue_opts kl__settings_defaults(void)
{
    kl_queue_opts opts = {.size = sizeof opts, .head_policy = KL_HEAD_CONTINUE, .origin = ""};
    for (int i = 0; i < SETTINGS; i++)
        *value_in(&opts, &settings[i]) = settings[i].standard;
    return opts;
}

/* While burst is what rate is, nobody stated it, and it goes along. */
kl_rc kl__settings_merge(kl_queue_opts *to, const kl_queue_opts *stated)
{
    bool goes_along = to->burst == to->rate;
    for (int i = LAYOUT_SETTINGS; i < SETTINGS; i++)
        if (value_of(stated, &settings[i]) != 0)
            *value_in(to, &settings[i]) = value_of(stated, &settings[i]);
    if (goes_along && stated->burst == 0)
        to->burst = to->rate;
    if (stated->head_policy != KL_HEAD_UNSET)
        to->head_policy = stated->head_policy;
    if (to->backoff_base_ms > to->backoff_max_ms)
        return kl__fail(KL_EINVAL, "backoff_base_ms (%lld) is above backoff_max_ms (%lld); lower it or raise the other",
                        (long long)to->backoff_base_ms, (long long)to->backoff_max_ms);
    return KL_OK;
}

/* --- The record --- */

static bool write_number(json_t *to, const struct setting *setting, int64_t value)
{
    return is_none(setting, value) ? kl__json_set_text(to, setting->name, "none")
                                   : kl__json_set_int(to, setting->name, value);
}

json_t *kl__settings_write(json_t *over, const kl_queue_opts *opts)
{
    bool written = kl__json_set_text(over, "head_policy", policies[opts->head_policy]);
    for (int i = LAYOUT_SETTINGS; written && i < SETTINGS; i++)
        written = write_number(over, &settings[i], value_of(opts, &settings[i]));
    if (written)
        return over;
    json_decref(over);
    return NULL;
}

static int64_t read_number(kl__json *from, const struct setting *setting)
{
    const char *text = json_string_value(json_object_get(from->object, setting->name));
    if (setting->none != NEVER && text && strcmp(text, "none") == 0)
        return none_of(setting);
    return kl__json_int_or(from, setting->name, setting->min, setting->max, setting->standard);
}

static kl_head_policy read_policy(kl__json *from)
{
    const json_t *value = json_object_get(from->object, "head_policy");
    const char *text = json_string_value(value);
    kl_head_policy policy = text ? kl__policy_parse(text) : KL_HEAD_UNSET;
    if (policy != KL_HEAD_UNSET)
        return policy;
    if (value)
        kl__json_damaged(from, "head_policy", "is neither continue, halt nor drain");
    return KL_HEAD_CONTINUE;
}

/* A setting that is missing is one that came later than the record: it has its default. */
void kl__settings_read(kl__json *from, kl_queue_opts *ret_settings)
{
    kl_queue_opts opts = kl__settings_defaults();
    for (int i = LAYOUT_SETTINGS; i < SETTINGS; i++)
        *value_in(&opts, &settings[i]) = read_number(from, &settings[i]);
    opts.head_policy = read_policy(from);
    *ret_settings = opts;
}
