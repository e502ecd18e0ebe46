/* bill.h - what stores on S3 have asked of the server, and what that costs.
 *
 * Every process counts its own requests. One that lives for a while also leaves its account in the bucket, as
 * index/bill/<begin>-<nonce>.json, every ten minutes and when it ends, so that a bill can be made for all of them. */
#ifndef KL_STORE_S3_BILL_H
#define KL_STORE_S3_BILL_H

#include "keyline/store.h"
#include "store/s3/http.h"

/* Requests and tasks between two times of the store's clock. */
typedef struct kl__s3_account {
    kl__s3_bill bill;
    uint64_t appended, settled; /* tasks */
    int64_t since_ms, now_ms;
    int64_t process_ms; /* how long the processes ran, all together */
    uint64_t processes;
} kl__s3_account;

/* This process, since the store was opened. False: it is no store on S3. */
bool kl__s3_account_of(kl_store *store, kl__s3_account *ret_account);

/* All processes that left an account in the last `days` days. KL_EINVAL: it is no store on S3. */
KL_MUST_USE kl_rc kl__s3_account_all(kl_store *store, int64_t days, kl__s3_account *ret_account);

/* Dollars for each thousand: Amazon S3 Standard in us-east-1. Others charge other prices, or none. */
typedef struct kl__s3_price {
    const char *name;
    double per_thousand;
} kl__s3_price;
extern const kl__s3_price kl__s3_prices[KL_S3_KINDS];

double kl__s3_cost(const kl__s3_bill *bill);
uint64_t kl__s3_requests(const kl__s3_bill *bill);

#endif
