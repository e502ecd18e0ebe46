/* doctor_cost.c - `keyline doctor --cost`: what a store on S3 costs.
 *
 * From: doctor.c.  To: store/s3/bill.h, which adds up the accounts that processes leave in the bucket. */
#include "cli/doctor_cost.h"
#include "base/base.h"

#include <stdio.h>

#include "cli/cli.h"
#include "store/s3/bill.h"

enum { DAYS = 7 };

static double per(double value, double of) { return of > 0 ? value / of : 0; }

static void print_json(const kl__s3_account *account)
{
    uint64_t requests = kl__s3_requests(&account->bill);
    printf("{\"processes\":%llu,\"hours\":%.2f,\"appended\":%llu,\"settled\":%llu,\"requests\":%llu",
           (unsigned long long)account->processes, (double)account->process_ms / 3600000,
           (unsigned long long)account->appended, (unsigned long long)account->settled, (unsigned long long)requests);
    for (int i = 0; i < KL_S3_KINDS; i++)
        printf(",\"%s\":%llu", kl__s3_prices[i].name, (unsigned long long)account->bill.requests[i]);
    printf(",\"requests_per_task\":%.4f,\"requests_per_hour\":%.0f,\"dollars\":%.4f}\n",
           per((double)requests, (double)account->settled),
           per((double)requests, (double)account->process_ms / 3600000), kl__s3_cost(&account->bill));
}

static void print_table(const kl__s3_account *account)
{
    uint64_t requests = kl__s3_requests(&account->bill);
    double hours = (double)account->process_ms / 3600000, settled = (double)account->settled;
    double dollars = kl__s3_cost(&account->bill);
    printf("%llu process%s in the last %d days, %.1f hours together; %llu task%s put, %llu settled\n\n",
           (unsigned long long)account->processes, account->processes == 1 ? "" : "es", DAYS, hours,
           (unsigned long long)account->appended, kl__plural(account->appended), (unsigned long long)account->settled);
    printf("  %-8s %12s %12s %12s %12s %10s\n", "request", "count", "per task", "per hour", "$ per 1,000", "$");
    for (int i = 0; i < KL_S3_KINDS; i++) {
        double count = (double)account->bill.requests[i];
        printf("  %-8s %12.0f %12.4f %12.0f %12.4f %10.4f\n", kl__s3_prices[i].name, count, per(count, settled),
               per(count, hours), kl__s3_prices[i].per_thousand, count / 1000 * kl__s3_prices[i].per_thousand);
    }
    printf("  %-8s %12llu %12.4f %12.0f %12s %10.4f\n\n", "all", (unsigned long long)requests,
           per((double)requests, settled), per((double)requests, hours), "", dollars);
    printf("Counted are processes that were at it for a minute or longer; each adds to its account every ten minutes, "
           "and\n"
           "when it ends. ");
    if (settled > 0)
        printf("A million tasks cost $%.2f at this rate. ", dollars / settled * 1e6);
    printf("Prices are Amazon's for S3 Standard in us-east-1; storage and traffic are not in it.\n");
}

int kl__doctor_cost(const char *url, bool json)
{
    kl_store *store = NULL;
    kl__s3_account account;
    kl_rc rc = kl_store_open(url, NULL, &store);
    if (rc == KL_OK)
        rc = kl__s3_account_all(store, DAYS, &account);
    if (rc == KL_OK && json)
        print_json(&account);
    else if (rc == KL_OK)
        print_table(&account);
    int status = kl__fail_given(rc);
    kl_store_close(store);
    return status;
}
