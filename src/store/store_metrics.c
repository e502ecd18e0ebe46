/* store_metrics.c - every call of a store is counted, timed and traced here, so that no engine can forget it.
 *
 * A counter is one relaxed addition per call, whatever the size of the batch. The text is made from a copy of the
 * counters, so that its length is known before it is written; counters of one call that ran meanwhile may be a call
 * apart from one another. */
#include <stdio.h>

#include "base/clock.h"
#include "base/text.h"
#include "store/dispatch.h"
#include "store/s3/bill.h"

static const char *const call_names[KL_CALLS] = {
#define CALL_NAME(name, text) text,
    KL_CALL_TABLE(CALL_NAME)
#undef CALL_NAME
};

/* From what memory takes to what a disk in trouble takes. */
static const int64_t bounds_ns[KL_CALL_BUCKETS] = {10000,    50000,    100000,    500000,    1000000,    5000000,
                                                   10000000, 50000000, 100000000, 500000000, 1000000000, 10000000000};

static void add(_Atomic(uint64_t) *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static int bucket_of(int64_t ns)
{
    int bucket = 0;
    while (bucket < KL_CALL_BUCKETS && ns > bounds_ns[bucket])
        bucket++;
    return bucket;
}

kl_rc kl__store_end(kl_store *store, kl__call call, kl__begun begun, kl_rc rc, uint64_t items, uint64_t bytes)
{
    kl__call_counters *counters = &store->calls[call];
    int64_t ns = kl__monotonic_ns() - begun.ns;
    add(&counters->buckets[bucket_of(ns)], 1);
    add(&counters->sum_ns, (uint64_t)ns);
    if (items > 0)
        add(&counters->items, items);
    if (bytes > 0)
        add(&counters->bytes, bytes);
    if (rc != KL_OK) {
        int64_t code = -(int64_t)rc;
        add(&counters->errors[code > 0 && code < KL_CALL_CODES ? code : KL_CALL_CODES], 1);
    }
    if (store->opts.trace) {
        kl_store_call traced = {call_names[call], rc, items, bytes, ns};
        store->opts.trace(store->opts.trace_ctx, &traced);
    }
    kl__cancel_again(begun.cancel_state);
    return rc;
}

/* --- Text --- */

/* The counters of one kind of call, copied. */
struct sample {
    uint64_t calls, sum_ns, items, bytes;
    uint64_t buckets[KL_CALL_BUCKETS + 1];
    uint64_t errors[KL_CALL_CODES + 1];
};

static uint64_t load(_Atomic(uint64_t) *counter) { return atomic_load_explicit(counter, memory_order_relaxed); }

static void take_sample(kl__call_counters *counters, struct sample *ret_sample)
{
    *ret_sample = (struct sample){
        .sum_ns = load(&counters->sum_ns), .items = load(&counters->items), .bytes = load(&counters->bytes)};
    for (int i = 0; i <= KL_CALL_BUCKETS; i++) {
        ret_sample->buckets[i] = load(&counters->buckets[i]);
        ret_sample->calls += ret_sample->buckets[i];
    }
    for (int i = 0; i <= KL_CALL_CODES; i++)
        ret_sample->errors[i] = load(&counters->errors[i]);
}

/* Seconds as a decimal number, whatever the locale: "0.005", "1". */
static const char *seconds_text(uint64_t ns, char *buffer, size_t size)
{
    int length = snprintf(buffer, size, "%llu.%09llu", (unsigned long long)(ns / 1000000000),
                          (unsigned long long)(ns % 1000000000));
    while (buffer[length - 1] == '0')
        length--;
    if (buffer[length - 1] == '.')
        length--;
    buffer[length] = '\0';
    return buffer;
}

static void put_histogram(kl__text *text, const char *engine, const char *call, const struct sample *sample)
{
    static const char name[] = "keyline_store_call_duration_seconds";
    uint64_t below = 0;
    char seconds[48];
    for (int i = 0; i < KL_CALL_BUCKETS; i++) {
        below += sample->buckets[i];
        kl__text_put(text, "%s_bucket{engine=\"%s\",call=\"%s\",le=\"%s\"} %llu\n", name, engine, call,
                     seconds_text((uint64_t)bounds_ns[i], seconds, sizeof seconds), (unsigned long long)below);
    }
    kl__text_put(text, "%s_bucket{engine=\"%s\",call=\"%s\",le=\"+Inf\"} %llu\n", name, engine, call,
                 (unsigned long long)sample->calls);
    kl__text_put(text, "%s_sum{engine=\"%s\",call=\"%s\"} %s\n", name, engine, call,
                 seconds_text(sample->sum_ns, seconds, sizeof seconds));
    kl__text_put(text, "%s_count{engine=\"%s\",call=\"%s\"} %llu\n", name, engine, call,
                 (unsigned long long)sample->calls);
}

/* Only codes that occurred: 14 for each call would be mostly zeros. */
static void put_errors(kl__text *text, const char *engine, const char *call, const struct sample *sample)
{
    for (int i = 1; i <= KL_CALL_CODES; i++)
        if (sample->errors[i] > 0)
            kl__text_put(text, "keyline_store_errors_total{engine=\"%s\",call=\"%s\",code=\"%s\"} %llu\n", engine, call,
                         kl_rc_name((kl_rc)-i), (unsigned long long)sample->errors[i]);
}

struct family {
    const char *name, *help;
    size_t offset; /* of its value in a sample */
};

static const struct family families[] = {
    {"keyline_store_calls_total", "Calls of the store, refused ones included.", offsetof(struct sample, calls)},
    {"keyline_store_items_total", "Tasks and records that calls took in or gave out.", offsetof(struct sample, items)},
    {"keyline_store_bytes_total", "Bytes of what calls took in or gave out.", offsetof(struct sample, bytes)},
};

static void put_all(kl__text *text, const char *engine, const struct sample *samples)
{
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        const struct family *family = &families[f];
        kl__text_put(text, "# HELP %s %s\n# TYPE %s counter\n", family->name, family->help, family->name);
        for (int i = 0; i < KL_CALLS; i++) {
            uint64_t value = *(const uint64_t *)(const void *)((const char *)&samples[i] + family->offset);
            kl__text_put(text, "%s{engine=\"%s\",call=\"%s\"} %llu\n", family->name, engine, call_names[i],
                         (unsigned long long)value);
        }
    }
    kl__text_put(text, "# HELP keyline_store_errors_total Calls that failed, by the code that they returned.\n"
                       "# TYPE keyline_store_errors_total counter\n");
    for (int i = 0; i < KL_CALLS; i++)
        put_errors(text, engine, call_names[i], &samples[i]);
    kl__text_put(text, "# HELP keyline_store_call_duration_seconds How long calls took.\n"
                       "# TYPE keyline_store_call_duration_seconds histogram\n");
    for (int i = 0; i < KL_CALLS; i++)
        put_histogram(text, engine, call_names[i], &samples[i]);
}

/* What a store on S3 is billed for. */
static void put_requests(kl__text *text, const kl__s3_account *account)
{
    static const char name[] = "keyline_s3_requests_total";
    kl__text_put(text, "# HELP %s Requests sent to S3, repeats included.\n# TYPE %s counter\n", name, name);
    for (int i = 0; i < KL_S3_KINDS; i++)
        kl__text_put(text, "%s{kind=\"%s\"} %llu\n", name, kl__s3_prices[i].name,
                     (unsigned long long)account->bill.requests[i]);
    kl__text_put(
        text,
        "# HELP keyline_s3_repeats_total Requests that were sent again.\n"
        "# TYPE keyline_s3_repeats_total counter\nkeyline_s3_repeats_total %llu\n"
        "# HELP keyline_s3_tasks_total Tasks that the requests were for.\n# TYPE keyline_s3_tasks_total counter\n"
        "keyline_s3_tasks_total{what=\"appended\"} %llu\nkeyline_s3_tasks_total{what=\"settled\"} %llu\n",
        (unsigned long long)account->bill.repeats, (unsigned long long)account->appended,
        (unsigned long long)account->settled);
}

kl_rc kl_store_metrics(kl_store *store, kl_arena *arena, kl_bytes *ret_text)
{
    if (!store || !arena || !ret_text)
        return kl__fail(KL_EINVAL, "kl_store_metrics needs a store, an arena and somewhere to put the text");
    struct sample samples[KL_CALLS];
    for (int i = 0; i < KL_CALLS; i++)
        take_sample(&store->calls[i], &samples[i]);
    kl__s3_account account;
    bool billed = kl__s3_account_of(store, &account);
    kl__text text = {NULL, 0, 0};
    put_all(&text, store->engine->scheme, samples);
    if (billed)
        put_requests(&text, &account);
    text = (kl__text){kl_arena_alloc(arena, text.length + 1), text.length + 1, 0};
    if (!text.buffer)
        return kl__fail_memory();
    put_all(&text, store->engine->scheme, samples);
    if (billed)
        put_requests(&text, &account);
    KL_ASSERT(text.length + 1 == text.size);
    *ret_text = (kl_bytes){text.buffer, text.length};
    return KL_OK;
}
