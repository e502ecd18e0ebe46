/* told.h - what fails again and again is told when it is new, and then at intervals that double up to a minute. */
#ifndef KL_TOLD_H
#define KL_TOLD_H

#include <stdbool.h>
#include <stdint.h>

#include "keyline/bytes.h"

enum {
    KL_TOLD_MAX = 8,         /* sentences that are remembered, */
    KL_TOLD_FIRST_MS = 1000, /* and how long one is kept back at first */
};

typedef struct kl__told {
    uint64_t sentence; /* its hash */
    int64_t until_ns;  /* not told again before, */
    int64_t rest_ns;   /* which is so long after the last time; 0: there is none */
} kl__told;

/* Whether the sentence is to be told now; remembers that it was. All zero: nothing was told. */
bool kl__told_anew(kl__told told[KL_TOLD_MAX], kl_bytes sentence, int64_t now_ns);

#endif
