/* serve_demo.h - a small load for a server that is only looked at: some keys, of which one fails now and then. */
#ifndef KL_CLI_SERVE_DEMO_H
#define KL_CLI_SERVE_DEMO_H

#include "keyline/worker.h"

typedef struct kl__serve_demo kl__serve_demo;

/* Puts and runs about twenty tasks a second of the queue demo. Errors as kl_queue_open and kl_worker_start. */
kl_rc kl__serve_demo_start(kl_store *store, kl__serve_demo **ret_demo);
void kl__serve_demo_stop(kl__serve_demo *demo); /* NULL is fine */

#endif
