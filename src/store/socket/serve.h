/* serve.h - between server.c, which has the connections, and serve.c, which makes the calls. */
#ifndef KL_STORE_SERVE_H
#define KL_STORE_SERVE_H

#include <stdatomic.h>

#include "store/socket/socket.h"
#include "store/socket/wire.h"

/* One call at a time: what it is made on, and where its memory comes from. */
typedef struct kl__serving {
    kl_store *store;
    uint64_t salt;               /* of this server: see wait in serve.c */
    uint64_t identity;           /* of the store (kl__store_identity) */
    const atomic_bool *stopping; /* set: waits end early */
    int fd;                      /* of the client, to notice that it has gone */
    kl__made_fn *made;           /* who is told of changes; NULL: nobody */
    void *made_ctx;
    const void *whose;
    kl_arena arena;
    kl__out out;
} kl__serving;

/* Makes the call that the frame asks for, and writes the answer to `out`. */
void kl__serve(kl__serving *serving, const kl__frame *request);

/* Writes an answer that the call was not made. */
void kl__serve_not(kl__serving *serving, const kl__frame *request);

#endif
