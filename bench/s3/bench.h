/* bench.h - what the modes share. */
#ifndef BENCH_S3_BENCH_H
#define BENCH_S3_BENCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "keyline/store.h"
#include "store/s3/bill.h"

#define MUST_KL(call)                                                                                                  \
    do {                                                                                                               \
        if ((call) != KL_OK) {                                                                                         \
            fprintf(stderr, "bench-s3: %s: %s\n", #call, kl_error_text());                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

struct kl__s3_bill bill_of(kl_store *store);
void bill_add(struct kl__s3_bill *sum, const struct kl__s3_bill *more, const struct kl__s3_bill *less);
uint64_t bill_total(const struct kl__s3_bill *bill);
void print_bill(const char *what, const struct kl__s3_bill *bill, double per, int64_t took_ns, double tasks);

/* baseline.c */
void run_baseline(const char *url, uint64_t tasks);

#endif
