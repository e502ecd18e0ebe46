/* fault_proxy.h - a proxy between a test and its server that does to HTTP what networks and servers do.
 *
 * Each request meets, at random: an answer that is lost although the request was carried out, a request that is lost, 500,
 * 503 SlowDown and 409 without any effect, 500 although it was carried out, an answer that is slow, and one that stalls
 * half-way. Everything else passes. One thread per connection; one request at a time on each. */
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

/* Listens on a port of its own on loopback and passes on to 127.0.0.1:port. `percent` of requests meet a fault. NULL: it
 * cannot be started. */
struct fault_proxy *fault_proxy_start(int port, uint64_t seed, unsigned percent);
/* No proxy but a server that cannot hold a store: one ignores conditions and takes every PUT, as the npm package s3rver
 * does; the other refuses conditions with 501, as OpenStack Swift's s3api does. */
enum fake { FAKE_NONE, FAKE_IGNORES, FAKE_REFUSES };
struct fault_proxy *fault_proxy_fake(enum fake fake);

int fault_proxy_port(const struct fault_proxy *proxy);
uint64_t fault_proxy_count(const struct fault_proxy *proxy, enum fault fault); /* how often it was met */
void fault_proxy_stop(struct fault_proxy *proxy);                              /* NULL is fine */

#endif
