/* fault_proxy.h - a proxy between a test and its server that does to HTTP what networks and servers do.
 *
 * Each request meets, at random: an answer that is lost although the request was carried out, a request that is lost,
 * 500, 503 SlowDown and 409 without any effect, 500 although it was carried out, an answer that is slow, and one that
 * stalls half-way. Everything else passes. One thread per connection; one request at a time on each. */
#ifndef TESTS_STORE_FAULT_PROXY_H
#define TESTS_STORE_FAULT_PROXY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum fault {
    FAULT_NONE,
    FAULT_REPLY_LOST,   /* carried out; the connection ends without an answer */
    FAULT_REQUEST_LOST, /* the connection ends, and the server never saw it */
    FAULT_500,
    FAULT_503,
    FAULT_409,
    FAULT_500_DONE, /* carried out, and answered 500 */
    FAULT_SLOW,
    FAULT_CUT, /* carried out; half of the answer comes */
    FAULTS
};

struct fault_proxy;

/* Listens on a port of its own on loopback and passes on to 127.0.0.1:port. `percent` of requests meet a fault. NULL:
 * it cannot be started. */
struct fault_proxy *fault_proxy_start(int port, uint64_t seed, unsigned percent);
/* No proxy but a server that cannot hold a store: one ignores conditions and takes every PUT, as the npm package s3rver
 * does; the other refuses conditions with 501, as OpenStack Swift's s3api does. One takes everything, and every fourth
 * of its answers bears a Date that is an hour ahead. The last one takes everything but what bears the session token
 * "old". */
enum fake { FAKE_NONE, FAKE_IGNORES, FAKE_REFUSES, FAKE_DATES, FAKE_EXPIRES };
struct fault_proxy *fault_proxy_fake(enum fake fake);

/* From now on a delete of several objects is answered 200, as ever, and has no effect: the answer says of one name that
 * it is refused. */
void fault_proxy_refuse_deletes(struct fault_proxy *proxy);
uint64_t fault_proxy_refused(const struct fault_proxy *proxy); /* how many were answered so */

/* The server is away: from now on every request is lost; or it is there again. */
void fault_proxy_cut_off(struct fault_proxy *proxy, bool cut);

/* From now on the server's clock seems to be so much ahead: the client has stood still without noticing. */
void fault_proxy_jump(struct fault_proxy *proxy, int seconds);

/* The same, and the next request is refused, because the client's clock is wrong. */
void fault_proxy_skew(struct fault_proxy *proxy, int seconds);

/* How many requests that begin so ("PUT ") and name something with this in it ("/index/") were answered. From now on;
 * the texts stay the caller's. */
void fault_proxy_watch(struct fault_proxy *proxy, const char *method, const char *part);
uint64_t fault_proxy_watched(const struct fault_proxy *proxy);

/* From now on requests that begin so and name something with this in it wait here, until all are let go. How many
 * have. */
void fault_proxy_hold(struct fault_proxy *proxy, const char *method, const char *part);
uint64_t fault_proxy_held(struct fault_proxy *proxy);
void fault_proxy_let_go(struct fault_proxy *proxy);

int fault_proxy_port(const struct fault_proxy *proxy);
uint64_t fault_proxy_count(const struct fault_proxy *proxy, enum fault fault); /* how often it was met */
void fault_proxy_stop(struct fault_proxy *proxy);                              /* NULL is fine */

#endif
