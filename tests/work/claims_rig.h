/* claims_rig.h - what tests of claims share: asking and saying that wait for the answer. */
#ifndef TESTS_WORK_CLAIMS_RIG_H
#define TESTS_WORK_CLAIMS_RIG_H

#include "support.h"
#include "work/claims.h"

/* An ask and its answer. */
struct got {
    kl__claim_ask ask;
    kl_arena arena;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int answers;
    kl_rc rc;
    const kl__claimed *tasks;
    size_t count;
};

/* NULL: they did not open, and the test has failed. */
kl__claims *claims_of(kl_queue *queue, const char *server);

void got_init(struct got *got, size_t max, int64_t wait_ms, int64_t lease_ms);
void got_free(struct got *got);
bool got_wait(struct got *got); /* for the answer; false, and the test fails: it never came */

/* Asks and waits for the answer; got is to be freed. How many tasks it brought. */
size_t claim(kl__claims *claims, struct got *got, size_t max, int64_t wait_ms, int64_t lease_ms);
size_t claim_kind(kl__claims *claims, struct got *got, size_t max, int64_t wait_ms, const char *kind);

/* Says and waits for the answer. Each returns what the say's rc is. */
kl_rc say(kl__claims *claims, kl__claim_say *say);
kl_rc say_word(kl__claims *claims, kl__claim_word word, const char *token);
kl_rc say_all(kl__claims *claims, kl__claim_say *says, size_t count); /* of the batch */

/* The payload of a task that was given out, as text; valid until the next 8 calls of this thread. */
const char *payload_of(const kl__claimed *claimed);

#endif
