/* baseline.c - the object-per-task protocol of queues on S3, for comparison: a task is an object, and so is its lease.
 *
 *     put       PUT  pending/<shard>/<id>/task.json
 *     find      LIST pending/<shard>/ of a random shard, recursively: tasks without a lease, the oldest first
 *     claim     PUT  pending/<shard>/<id>/lease.json, if absent
 *     read      GET  pending/<shard>/<id>/task.json
 *     (run; a heartbeat would be one more COPY for each task that takes long: these take no time)
 *     finish    PUT  done/<id>.json, then DELETE task.json and lease.json
 *
 * One listing serves for as many tasks as it shows, which is more than the documents that describe it ask for. */
#include "bench.h"

#include <stdbool.h>
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/random.h"
#include "store/dispatch.h"
#include "store/s3/s3.h"

enum { SHARDS = 16, BODY = 200 };

static uint64_t next_random = 1;

static void ask(kl__s3 *s3, kl__s3_kind kind, const char *name, const char *body, bool absent, int *ret_status)
{
    kl__s3_request request = {.kind = kind, .name = name, .absent = absent};
    if (body)
        request.body = kl_str(body);
    MUST_KL(kl__s3_send(s3->http, &request, 1));
    if (ret_status)
        *ret_status = request.status;
    kl__s3_request_free(&request);
}

static void put_task(kl__s3 *s3, uint64_t number)
{
    char name[200], body[BODY + 1];
    uint64_t id = kl__random_next(&next_random);
    memset(body, 'x', BODY);
    body[BODY] = '\0';
    snprintf(name, sizeof name, "%sbaseline/pending/%x/%016llx-%llu/task.json", s3->prefix, (unsigned)(id % SHARDS),
             (unsigned long long)id, (unsigned long long)number);
    ask(s3, KL_S3_PUT, name, body, false, NULL);
}

/* Claims, reads, finishes and removes one task. */
static bool run_task(kl__s3 *s3, const char *task)
{
    char name[300], lease[300], done[300];
    int status;
    size_t folder = strlen(task) - strlen("task.json");
    snprintf(name, sizeof name, "%s%s", s3->prefix, task);
    snprintf(lease, sizeof lease, "%s%.*slease.json", s3->prefix, (int)folder, task);
    ask(s3, KL_S3_PUT, lease, "{\"worker\":\"w\"}", true, &status);
    if (status == 412)
        return false;
    ask(s3, KL_S3_GET, name, NULL, false, NULL);
    snprintf(done, sizeof done, "%sbaseline/done/%.*s.json", s3->prefix, (int)(folder - 20), task + 19);
    for (char *at = done + strlen(s3->prefix) + 14; *at; at++)
        if (*at == '/')
            *at = '-';
    ask(s3, KL_S3_PUT, done, "{\"result\":\"\"}", false, NULL);
    ask(s3, KL_S3_DELETE, name, NULL, false, NULL);
    ask(s3, KL_S3_DELETE, lease, NULL, false, NULL);
    return true;
}

static uint64_t run_shard(kl__s3 *s3, unsigned shard)
{
    char prefix[100];
    kl__s3_names names;
    uint64_t run = 0;
    snprintf(prefix, sizeof prefix, "baseline/pending/%x/", shard);
    MUST_KL(kl__s3_list_page(s3, prefix, NULL, 0, &names));
    for (size_t i = 0; i < names.count; i++) {
        const char *name = names.items[i].name;
        size_t len = strlen(name);
        if (len > 9 && strcmp(name + len - 9, "task.json") == 0)
            run += run_task(s3, name);
    }
    kl__s3_names_free(&names);
    return run;
}

void run_baseline(const char *url, uint64_t tasks)
{
    kl_store *store;
    MUST_KL(kl_store_open(url, NULL, &store));
    kl__s3 *s3 = store->self;
    struct kl__s3_bill before = bill_of(store), sum = {0};
    int64_t begin_ns = kl__monotonic_ns();
    for (uint64_t i = 0; i < tasks; i++)
        put_task(s3, i);
    for (uint64_t run = 0; run < tasks;)
        run += run_shard(s3, (unsigned)kl__random_below(&next_random, SHARDS));
    int64_t took_ns = kl__monotonic_ns() - begin_ns;
    struct kl__s3_bill after = bill_of(store);
    bill_add(&sum, &after, &before);
    print_bill("baseline", &sum, (double)tasks, took_ns, (double)tasks);
    kl_store_close(store);
}
