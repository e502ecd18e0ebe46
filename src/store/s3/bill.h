/* bill.h - what a store on S3 has asked of the server, and what that costs. */
#ifndef KL_STORE_S3_BILL_H
#define KL_STORE_S3_BILL_H

#include "keyline/store.h"
#include "store/s3/http.h"

/* Requests and tasks of this process since the store was opened. */
typedef struct kl__s3_account {
    kl__s3_bill bill;
    uint64_t appended, settled; /* tasks */
    int64_t since_ms, now_ms;   /* the store's clock */
} kl__s3_account;

/* False: it is no store on S3. */
bool kl__s3_account_of(kl_store *store, kl__s3_account *ret_account);

#endif
