/* test_watch.c - every call of a store is counted and traced once (D2), for nothing but counting (D3). */
#include <stdlib.h>

#include "base/clock.h"
#include "store/calls.h"
#include "store/spy.h"

static char *metrics_of(kl_store *store, kl_arena *arena)
{
    kl_bytes text = {0};
    CHECK_INT(kl_store_metrics(store, arena, &text), KL_OK);
    CHECK_INT(strlen(text.data), text.len);
    return (char *)text.data;
}

/* The value of one series; -1: there is none. */
static double value_of(const char *text, const char *name, const char *labels)
{
    char series[160];
    int length = snprintf(series, sizeof series, "keyline_store_%s{engine=\"spy\",%s} ", name, labels);
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
        if (strncmp(line, series, (size_t)length) == 0)
            return strtod(line + length, NULL);
    return -1;
}

TEST(metrics_count_calls_items_bytes_and_errors)
{
    kl_arena arena = {0};
    kl_entry entries[] = {entry_of(1, 1), entry_of(1, 2), entry_of(1, 77)};
    kl_settled settled[] = {SETTLED(.error = sized(10)), SETTLED(.result = sized(20))};
    kl_settle batches[] = {{.place = {1, 3}, .tasks = settled, .count = 1},
                           {.place = {1, 3}, .tasks = settled, .count = 2}};
    kl_stub stubs[8];
    size_t count;
    kl_store *store = open_spy(NULL);
    entries[0].payload = sized(100);
    entries[1].key = sized(11);
    CHECK_INT(kl_store_append(store, entries, 2, NULL), KL_OK);
    CHECK_INT(kl_store_append(store, entries, 1, NULL), KL_OK);
    CHECK_INT(kl_store_append(store, entries, 3, NULL), KL_EINVAL);
    CHECK_INT(scan_one(store, &(kl_scan){.place = {1, 1}, .max = 8}, stubs, &count), KL_OK);
    CHECK_INT(kl_store_settle(store, batches, 2), KL_OK);
    spy.rc = KL_ESTALE;
    CHECK_INT(kl_store_settle(store, batches, 2), KL_ESTALE); /* the second batch counts */
    spy.rc = (kl_rc)-99;
    CHECK_INT(kl_store_append(store, entries, 1, NULL), -99);
    const char *text = metrics_of(store, &arena);
    CHECK_INT(value_of(text, "calls_total", "call=\"append\""), 4);
    CHECK_INT(value_of(text, "items_total", "call=\"append\""), 3);
    CHECK_INT(value_of(text, "bytes_total", "call=\"append\""), 211);
    CHECK_INT(value_of(text, "errors_total", "call=\"append\",code=\"KL_EINVAL\""), 1);
    CHECK_INT(value_of(text, "errors_total", "call=\"append\",code=\"unknown\""), 1);
    CHECK_INT(value_of(text, "errors_total", "call=\"append\",code=\"KL_ESTALE\""), -1);
    CHECK_INT(value_of(text, "items_total", "call=\"scan\""), 3);
    CHECK_INT(value_of(text, "calls_total", "call=\"settle\""), 2);
    CHECK_INT(value_of(text, "items_total", "call=\"settle\""), 5);
    CHECK_INT(value_of(text, "bytes_total", "call=\"settle\""), 70);
    CHECK_INT(value_of(text, "errors_total", "call=\"settle\",code=\"KL_ESTALE\""), 1);
    CHECK_INT(value_of(text, "calls_total", "call=\"partition\""), 2);
    CHECK_INT(value_of(text, "calls_total", "call=\"list\""), 0);
    CHECK_INT(value_of(text, "call_duration_seconds_count", "call=\"append\""), 4);
    CHECK_INT(value_of(text, "call_duration_seconds_bucket", "call=\"append\",le=\"+Inf\""), 4);
    CHECK(value_of(text, "call_duration_seconds_sum", "call=\"append\"") > 0);
    kl_arena_free(&arena);
    kl_store_close(store);
}

/* Every line is a HELP, its TYPE, or a sample of the family that was announced last. */
TEST(metrics_are_well_formed)
{
    char family[96] = "", word[96], type[32];
    int families = 0, samples = 0;
    kl_arena arena = {0};
    kl_store *store = open_spy(NULL);
    CHECK_INT(kl_store_append(store, NULL, 1, NULL), KL_EINVAL);
    char *text = metrics_of(store, &arena);
    CHECK(text[0] && text[strlen(text) - 1] == '\n');
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        if (sscanf(line, "# HELP %95s %31s", word, type) == 2) {
            snprintf(family, sizeof family, "%s", word);
            families++;
        } else if (sscanf(line, "# TYPE %95s %31s", word, type) == 2) {
            CHECK_STR(word, family);
            CHECK(strcmp(type, "histogram") == 0 || (strcmp(type, "counter") == 0 && strstr(word, "_total")));
        } else {
            char *rest;
            const char *value = strrchr(line, ' ');
            REQUIRE(value && value > line);
            CHECK(strncmp(line, family, strlen(family)) == 0 && value[-1] == '}');
            CHECK(strtod(value + 1, &rest) >= 0 && *rest == '\0');
            samples++;
        }
    }
    CHECK_INT(families, 5);
    CHECK_INT(samples, KL_CALLS * (3 + KL_CALL_BUCKETS + 3) + 1);
    kl_arena_free(&arena);
    kl_store_close(store);
}

TEST(buckets_of_durations_add_up)
{
    kl_arena arena = {0};
    double last_bound = 0, last_count = 0;
    int buckets = 0;
    kl_store *store = open_spy(NULL);
    int64_t ms;
    for (int i = 0; i < 50; i++)
        CHECK_INT(kl_store_now(store, &ms), KL_OK);
    static const char prefix[] = "seconds_bucket{engine=\"spy\",call=\"now\",le=\"";
    for (const char *at = metrics_of(store, &arena); (at = strstr(at, prefix)); buckets++) {
        char *end;
        double bound = strtod(at += strlen(prefix), &end), count = strtod(end + 3, NULL);
        CHECK(bound > last_bound && count >= last_count);
        last_bound = bound;
        last_count = count;
    }
    CHECK_INT(buckets, KL_CALL_BUCKETS + 1);
    CHECK(last_bound > 1e300 && last_count == 50);
    kl_arena_free(&arena);
    kl_store_close(store);
}

TEST(a_duration_falls_into_the_bucket_that_holds_it)
{
    kl_arena arena = {0};
    kl_store *store = open_spy(NULL);
    CHECK_INT(kl__store_end(store, KL_CALL_FORGET, (kl__begun){.ns = INT64_MIN / 2}, KL_OK, 0, 0),
              KL_OK); /* began long ago */
    const char *text = metrics_of(store, &arena);
    CHECK_INT(value_of(text, "call_duration_seconds_bucket", "call=\"forget\",le=\"10\""), 0);
    CHECK_INT(value_of(text, "call_duration_seconds_bucket", "call=\"forget\",le=\"+Inf\""), 1);
    kl__begun begun = {.ns = kl__monotonic_ns() - 1500000000};
    CHECK_INT(kl__store_end(store, KL_CALL_GET, begun, KL_OK, 0, 0), KL_OK);
    text = metrics_of(store, &arena);
    CHECK_INT(value_of(text, "call_duration_seconds_bucket", "call=\"get\",le=\"1\""), 0);
    CHECK_INT(value_of(text, "call_duration_seconds_bucket", "call=\"get\",le=\"10\""), 1);
    kl_arena_free(&arena);
    kl_store_close(store);
}

TEST(metrics_need_an_arena_and_memory)
{
    kl_arena arena = {0};
    kl_bytes text = {"as it was", 9};
    kl_store *store = open_spy(NULL);
    CHECK_INT(kl_store_metrics(store, NULL, &text), KL_EINVAL);
    CHECK_INT(kl_store_metrics(store, &arena, NULL), KL_EINVAL);
    kl__alloc_fail_at(1);
    CHECK_INT(kl_store_metrics(store, &arena, &text), KL_ENOMEM);
    kl__alloc_fail_at(0);
    CHECK_STR(text.data, "as it was");
    kl_arena_free(&arena);
    kl_store_close(store);
}

struct traced {
    char names[512];
    kl_store_call last;
};

static void keep_trace(void *ctx, const kl_store_call *call)
{
    struct traced *traced = ctx;
    size_t length = strlen(traced->names);
    snprintf(traced->names + length, sizeof traced->names - length, "%s ", call->name);
    traced->last = *call;
    CHECK(call->duration_ns >= 0);
}

TEST(every_call_is_traced_once_with_what_came_of_it)
{
    struct traced traced = {"", {0}};
    kl_arena arena = {0};
    kl_store *store = open_spy(OPTS(.trace = keep_trace, .trace_ctx = &traced));
    kl_entry entry = entry_of(1, 1);
    kl_task_id id = entry.id;
    kl_place place = entry.place;
    kl_settled settled = {.id = id, .result = sized(9)};
    kl_settle batch = {.place = place, .tasks = &settled, .count = 1};
    kl_fence fence = {.place = place, .epoch = 1};
    kl_write write = {.name = kl_str("ab"), .value = kl_str("cde")};
    kl_bytes name = kl_str("ab"), none = {NULL, 0};
    struct end end = {0};
    kl_stub stub;
    kl_task tasks[2];
    kl_record record;
    kl_counts counts;
    size_t count;
    int64_t ms;
    uint64_t seen = 0;
    CHECK_STR(traced.names, "partition partition ");
    traced.names[0] = '\0';
    entry.payload = sized(40);
    CHECK_INT(kl_store_now(store, &ms), KL_OK);
    CHECK_INT(kl_store_append(store, &entry, 1, NULL), KL_OK);
    CHECK_INT(traced.last.items, 1);
    CHECK_INT(traced.last.bytes, 40);
    CHECK_INT(kl_store_append_async(store, &entry, 1, NULL, note_end, &end), KL_OK);
    CHECK_INT(scan_one(store, &(kl_scan){.place = place, .max = 1}, &stub, &count), KL_OK);
    CHECK_INT(read_some(store, place, &id, 1, &arena, tasks, &count), KL_OK);
    CHECK_INT(traced.last.bytes, 10);
    CHECK_INT(kl_store_settle(store, &batch, 1), KL_OK);
    CHECK_INT(traced.last.bytes, 9);
    CHECK_INT(kl_store_fence(store, &fence, 1), KL_OK);
    CHECK_INT(kl_store_counts(store, place, NULL, &counts), KL_OK);
    CHECK_INT(kl_store_wait(store, 1, 0, &seen), KL_OK);
    CHECK_INT(kl_store_results(store, place, &id, NULL, 2, &arena, tasks, &count), KL_OK);
    CHECK_INT(traced.last.items, 2);
    CHECK_INT(kl_store_find(store, &(kl_find){.max = 2}, &arena, tasks, &count), KL_OK);
    CHECK_INT(kl_store_forget(store, place, &id, 1), KL_OK);
    CHECK_INT(kl_store_get(store, &name, 1, &arena, &record), KL_OK);
    CHECK_INT(traced.last.bytes, 5);
    CHECK_INT(kl_store_put(store, &write, 1), KL_OK);
    CHECK_INT(traced.last.bytes, 5);
    CHECK_INT(kl_store_list(store, none, none, 1, &arena, &record, &count), KL_OK);
    CHECK_STR(traced.names,
              "now append append_async scan read settle fence counts wait results find forget get put list ");
    CHECK_INT(kl_store_append(store, NULL, 1, NULL), KL_EINVAL);
    CHECK_INT(traced.last.rc, KL_EINVAL);
    CHECK_INT(traced.last.items, 0);
    spy.rc = KL_EFULL;
    CHECK_INT(kl_store_append(store, &entry, 1, NULL), KL_EFULL);
    CHECK_INT(traced.last.rc, KL_EFULL);
    CHECK_STR(kl_error_text(), "the engine said so");
    kl_arena_free(&arena);
    kl_store_close(store);
}

TEST(checking_and_counting_a_large_append_allocates_nothing)
{
    static kl_entry entries[1000];
    kl_store *store = open_spy(NULL);
    for (int i = 0; i < 1000; i++)
        entries[i] = entry_of(2, (uint32_t)i % 256);
    kl__alloc_fail_at(0);
    TAKEN(kl_store_append(store, entries, 1000, NULL));
    CHECK_INT(kl__alloc_fail_at(0), 0);
    kl_store_close(store);
}
