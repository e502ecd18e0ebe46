/* bill.c - see bill.h. */
#include "store/s3/bill.h"

#include <stdio.h>
#include <stdlib.h>

#include "store/dispatch.h"
#include "store/engines.h"
#include "store/s3/s3.h"

enum { PAGES_MAX = 1000 };

const kl__s3_price kl__s3_prices[KL_S3_KINDS] = {
    [KL_S3_PUT] = {"put", 0.005},
    [KL_S3_GET] = {"get", 0.0004},
    [KL_S3_LIST] = {"list", 0.005},
    [KL_S3_DELETE] = {"delete", 0.0},
};

double kl__s3_cost(const kl__s3_bill *bill)
{
    double cost = 0;
    for (int i = 0; i < KL_S3_KINDS; i++)
        cost += (double)bill->requests[i] / 1000 * kl__s3_prices[i].per_thousand;
    return cost;
}

uint64_t kl__s3_requests(const kl__s3_bill *bill)
{
    uint64_t sum = 0;
    for (int i = 0; i < KL_S3_KINDS; i++)
        sum += bill->requests[i];
    return sum;
}

static kl__s3_account account_of(kl__s3 *s3)
{
    int64_t now_ms = kl__s3_now(s3);
    return (kl__s3_account){.bill = kl__s3_http_bill(s3->http),
                            .appended = atomic_load(&s3->appended),
                            .settled = atomic_load(&s3->settled),
                            .since_ms = s3->since_ms,
                            .now_ms = now_ms,
                            .process_ms = now_ms - s3->since_ms,
                            .processes = 1};
}

bool kl__s3_account_of(kl_store *store, kl__s3_account *ret_account)
{
    if (store->engine != &kl__engine_s3)
        return false;
    *ret_account = account_of(store->self);
    return true;
}

/* --- In the bucket --- */

void kl__s3_bill_save(kl__s3 *s3)
{
    kl__s3_account account = account_of(s3);
    kl__s3_text body = {0};
    char *name =
        kl__s3_name(s3, "index/bill/%013lld-%016llx.json", (long long)s3->since_ms, (unsigned long long)s3->bill_nonce);
    kl__s3_text_put(&body, "{\"keyline\":%d,\"since_ms\":%lld,\"now_ms\":%lld,\"appended\":%llu,\"settled\":%llu",
                    KL_S3_FORMAT, (long long)account.since_ms, (long long)account.now_ms,
                    (unsigned long long)account.appended, (unsigned long long)account.settled);
    for (int i = 0; i < KL_S3_KINDS; i++)
        kl__s3_text_put(&body, ",\"%s\":%llu", kl__s3_prices[i].name, (unsigned long long)account.bill.requests[i]);
    kl__s3_text_put(&body, "}\n");
    kl__s3_request request = {.kind = KL_S3_PUT, .name = name, .body = {body.data, body.len}};
    if (name && !body.failed && kl__s3_send(s3->http, &request, 1) != KL_OK)
        kl__s3_log(s3, KL_LOG_WARN, "the account of requests is not written: %s", kl_error_text());
    kl__s3_request_free(&request);
    kl__s3_text_free(&body);
    kl__free(name);
}

static bool add_account(const kl__s3_text *body, kl__s3_account *sum)
{
    json_t *root = kl__s3_parse(body);
    int64_t since_ms, now_ms, number;
    bool good = root && kl__s3_get_int(root, "since_ms", &since_ms) && kl__s3_get_int(root, "now_ms", &now_ms);
    for (int i = 0; good && i < KL_S3_KINDS; i++) {
        good = kl__s3_get_int(root, kl__s3_prices[i].name, &number);
        sum->bill.requests[i] += (uint64_t)number;
    }
    if (good && kl__s3_get_int(root, "appended", &number))
        sum->appended += (uint64_t)number;
    if (good && kl__s3_get_int(root, "settled", &number))
        sum->settled += (uint64_t)number;
    if (good) {
        sum->since_ms = sum->since_ms == 0 || since_ms < sum->since_ms ? since_ms : sum->since_ms;
        sum->now_ms = now_ms > sum->now_ms ? now_ms : sum->now_ms;
        sum->process_ms += now_ms - since_ms;
        sum->processes++;
    }
    json_decref(root);
    return good;
}

static kl_rc read_account(kl__s3 *s3, const char *listed, kl__s3_account *sum)
{
    kl__s3_request request = {0};
    char *name = kl__s3_name(s3, "%s", listed);
    kl_rc rc = kl__s3_get_object(s3, name, &request);
    if (rc == KL_OK && !add_account(&request.reply, sum))
        kl__s3_log(s3, KL_LOG_WARN, "%s cannot be understood, and is not counted", listed);
    kl__s3_request_free(&request);
    kl__free(name);
    return rc;
}

/* Names say when a process began. One that has run for long began before the days that are asked for, so all are
 * listed, and those read that were written since. */
kl_rc kl__s3_account_all(kl_store *store, int64_t days, kl__s3_account *ret_account)
{
    if (store->engine != &kl__engine_s3)
        return kl__fail(KL_EINVAL, "a bill is made for stores on S3; this one is %s:", store->engine->scheme);
    kl__s3 *s3 = store->self;
    kl__s3_names names = {.more = true};
    char after[128] = "";
    kl_rc rc = KL_OK;
    *ret_account = (kl__s3_account){0};
    int64_t from_ms = kl__s3_now(s3) - days * 86400000;
    for (int page = 0; rc == KL_OK && names.more && page < PAGES_MAX; page++) {
        rc = kl__s3_list_page(s3, "index/bill/", *after ? after : NULL, 0, &names);
        for (size_t i = 0; rc == KL_OK && i < names.count; i++) {
            if (names.items[i].modified_ms >= from_ms)
                rc = read_account(s3, names.items[i].name, ret_account);
            snprintf(after, sizeof after, "%s", names.items[i].name);
        }
        bool more = rc == KL_OK && names.more && names.count > 0;
        kl__s3_names_free(&names);
        names.more = more;
    }
    return rc;
}
