/* opening.h - what ends a program that blocks signals, while it opens its stores.
 *
 * A database that is silent, or whose schema somebody has locked, is waited for as long as it takes. Threads that
 * stores start must have the signals blocked, for whoever waits for them later; so a thread of its own lets them
 * through meanwhile. Nothing was begun yet that would have to be ended in order. */
#ifndef KL_CLI_OPENING_H
#define KL_CLI_OPENING_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

typedef struct kl__opening {
    pthread_t thread;
    sigset_t signals;
    int ends[2];
    bool runs;
} kl__opening;

/* Until kl__opening_end, these signals, which the caller has blocked, do what they do by default. */
void kl__opening_begin(kl__opening *opening, const sigset_t *signals);
void kl__opening_end(kl__opening *opening);

#endif
