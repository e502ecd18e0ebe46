/* clock.h - the server's clock, learned from the dates of its answers, so that leases are judged on one clock.
 *
 * Zeroed it is open. Whoever has it keeps calls apart. */
#ifndef KL_STORE_S3_CLOCK_H
#define KL_STORE_S3_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kl__s3_clock {
    int64_t offset_ms, now_ms;     /* the server's clock less the monotonic one; what was last told */
    int64_t newer_ms, newer_at_ms; /* the greatest offset since then: the next offset_ms */
    int64_t doubted_ms;            /* an offset far ahead that only one answer has shown; 0: none */
    bool is_set;                   /* a date has come */
    int64_t jumped_ns;             /* when a date last was far ahead, on the monotonic clock; 0: never */
} kl__s3_clock;

void kl__s3_clock_learn(kl__s3_clock *clock, int64_t date_ms); /* from the date of an answer */
void kl__s3_clock_set(kl__s3_clock *clock, int64_t date_ms);   /* a date by which the server refused ours */
int64_t kl__s3_clock_shows(const kl__s3_clock *clock);         /* to sign with: may step back when it is set */
int64_t kl__s3_clock_now(kl__s3_clock *clock);                 /* never steps back; 0: no answer has come yet */

#endif
