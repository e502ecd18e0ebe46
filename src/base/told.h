/* told.h - what fails again and again is told when it is new, and then at intervals that double up to some minutes; and
 * once when it works again.
 *
 *     failure ──► told at once ──► not told for 10 s, 20 s, 40 s ... ──► told, with how often and since when
 *     success ──► nothing has failed for a moment ──► told, with how long it had lasted
 *
 * Something may be done by several threads and fail in several ways. Failures with KL_EBUSY have one cause, whatever
 * their sentences say: connections are lost, then refused, then the server is starting. Others have one for each
 * sentence. What fails and works by turns is one failure that goes on: the sooner it comes back, the longer it must
 * have worked before that is told. */
#ifndef KL_TOLD_H
#define KL_TOLD_H

#include <stdbool.h>
#include <stdint.h>

#include "keyline/error.h"

enum {
    KL_TOLD_MAX = 8,             /* causes that are remembered */
    KL_TOLD_FIRST_MS = 10000,    /* how long one is kept back at first, */
    KL_TOLD_LONGEST_MS = 300000, /* and at last */
    KL_TOLD_CALM_MS = 1000,      /* it works when it has not failed for so long, */
    KL_TOLD_RESTLESS_MS = 60000, /* or for up to so long when it had worked no longer than that */
    KL_TOLD_BYTES = 768,         /* of a text */
};

/* What does not work, as a sentence, and its end: "the database cannot be used", "the database can be used again". */
typedef struct kl__told_words {
    const char *fails, *works;
} kl__told_words;

typedef struct kl__told_cause {
    uint64_t hash;    /* 0: none */
    int64_t until_ns; /* not told again before, */
    int64_t rest_ns;  /* which is so long after the last time */
} kl__told_cause;

/* All zero: nothing has failed. */
typedef struct kl__told {
    bool failing;      /* and it was not told yet that it works again */
    uint64_t times;    /* how often, */
    int64_t since_ns;  /* and since when */
    int64_t worked_ns; /* when it first worked since it last failed; 0: it has not */
    int64_t calm_ns;   /* how long it must work */
    int64_t ended_ns;  /* when the failure before ended; 0: there was none */
    kl__told_cause causes[KL_TOLD_MAX];
} kl__told;

/* It failed. True: `text` is to be told now. */
bool kl__told_failure(kl__told *told, const kl__told_words *words, kl_rc rc, const char *sentence, int64_t now_ns,
                      char text[KL_TOLD_BYTES]);

/* It worked. True: `text` is to be told now. */
bool kl__told_success(kl__told *told, const kl__told_words *words, int64_t now_ns, char text[KL_TOLD_BYTES]);

#endif
