/* tally.h - a number that others wait for. */
#ifndef TESTS_TALLY_H
#define TESTS_TALLY_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct tally {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int64_t value;
};

#define TALLY                                                                                                          \
    {                                                                                                                  \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0                                                         \
    }

void tally_add(struct tally *tally, int64_t number);
bool tally_await(struct tally *tally, int64_t number); /* until it is at least that; fails the test in the end */
int64_t tally_read(struct tally *tally);

#endif
