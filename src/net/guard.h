/* guard.h - whether a request may be here at all, whoever sent it: against what web pages can make browsers do.
 *
 * A page of any origin can make its reader's browser send requests to a server on the reader's own machine. Two things
 * tell such requests from honest ones:
 *
 *   Host            a page whose name was made to point to 127.0.0.1 after it was loaded (DNS rebinding) still has its
 *                   own name there. So Host must be an address that is listened on, localhost, or a name that was allowed.
 *   Sec-Fetch-Site  says whether the page is ours. Of other sites nothing is answered, and of neighbours (other ports
 *   Origin          and names of the same site) nothing that changes something. Browsers that send no Sec-Fetch-Site
 *                   send Origin with whatever may change something: it must name the Host itself.
 *
 * Programs send neither of the last two. Requests by a Unix socket are not guarded: no page can reach it. Pure
 * functions. */
#ifndef KL_NET_GUARD_H
#define KL_NET_GUARD_H

#include "net/parse.h"

/* Texts are the caller's and outlive it. All zero: only loopback. */
typedef struct kl__guard {
    const char *const *listen; /* "10.0.0.5:7420", "[::]:7420", as for http.h */
    size_t listen_count;
    const char *const *hosts; /* "tasks.example.org", without a port */
    size_t host_count;
} kl__guard;

/* NULL: it may; else a sentence that says what is wrong and what to do. */
const char *kl__guard_check(const kl__guard *guard, const kl__head *head);

/* The token of "Authorization: Bearer TOKEN"; no bytes: there is none. */
kl_bytes kl__guard_bearer(const kl__head *head);

/* Whether an address to listen on, as for http.h, can be reached from this machine alone. */
bool kl__guard_loopback(const char *listen);

#endif
