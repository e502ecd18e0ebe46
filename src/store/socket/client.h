/* client.h - between client.c, which has the connections, and client_calls.c, which speaks. */
#ifndef KL_STORE_CLIENT_H
#define KL_STORE_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/socket/socket.h"
#include "store/socket/wire.h"

/* A connection, or the memory of one that has ended; it belongs to one call at a time. */
typedef struct kl__link {
    struct kl__link *next;
    int fd; /* -1: not connected */
    uint64_t number;
    kl__out request;
    kl__frame reply;
} kl__link;

struct kl__client {
    const char *dir;
    kl__absent_fn *absent;
    void *absent_ctx;
    kl__dial_fn *dial; /* NULL: the socket in dir */
    void *dial_ctx;
    pthread_mutex_t absent_mutex; /* one asks at a time */
    atomic_bool moved;
    _Atomic(long) stopped; /* the process that was found so, when a call was made last; 0: none */
    _Atomic(uint32_t) can;
    _Atomic(uint64_t) identity;   /* of the store that was reached first; 0: not known */
    _Atomic(uint32_t) partitions; /* the highest number of one that it gave */

    pthread_mutex_t mutex;
    kl__link *idle;
    uint32_t idle_count;
};

/* Takes a link out of those that are idle, or makes one, and begins a request on it. KL_ENOMEM, KL_MOVED. */
kl_rc kl__link_take(kl__client *client, kl__wire_call call, kl__link **ret_link);
void kl__link_give(kl__client *client, kl__link *link); /* NULL is fine */

/* Sends the request and receives its answer, on a new connection where the old one has ended. May be called again after
 * another request was written. `repeats`: it may be made twice (N3).
 *
 * Returns the rc of the call, with its sentence. *ret_answered says whether there is an answer in *ret_in. KL_MOVED,
 * KL_EBUSY, KL_ENOMEM, KL_EINVAL, KL_ESYSTEM: as for kl__client_connect; then there is none. */
kl_rc kl__link_call(kl__client *client, kl__link *link, bool repeats, kl__in *ret_in, bool *ret_answered);

/* The answer cannot be read: the connection is of no more use. KL_ESYSTEM. */
kl_rc kl__link_refuse(kl__client *client, kl__link *link);

#endif
