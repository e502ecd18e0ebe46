/* forward.h - what is said of tasks that another server on the same store gave out. See forward.c. */
#ifndef KL_NET_FORWARD_H
#define KL_NET_FORWARD_H

#include "net/server.h"

/* Gives the server its name and secret. */
kl_rc kl__forward_open(kl__api *api);
void kl__forward_reachable(kl__api *api, const char *url); /* "http://10.0.0.7:7420", no slash behind */
kl_rc kl__forward_renew(kl__api *api);                     /* its record; every few seconds */
void kl__forward_close(kl__api *api);                      /* its record is gone */

/* Whether a bearer is this server's secret: then it is another server that asks. */
bool kl__forward_is(const kl__api *api, kl_bytes bearer);

/* Whether another server gave the token out, and which. */
bool kl__forward_foreign(const kl__api *api, kl_bytes token, char ret_server[24]);

/* Says it there: body is {"items": [...]} with these says in order, whose answers are set: KL_ENOTFOUND when that
 * server has ended, KL_ESTALE when it says that a token is stale, KL_ETIMEDOUT when it keeps an outcome that is not
 * stored yet. Blocks. KL_EBUSY: the other server cannot be reached, or did not understand. */
kl_rc kl__forward_send(kl__exchange *exchange, const char *server, kl_bytes body, kl__claim_say *says, size_t count);

#endif
