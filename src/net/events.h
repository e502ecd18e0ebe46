/* events.h - what happens, live, for those who watch: server-sent events. See events.c.
 *
 *     event: tasks           data: {"queue": "orders", "put": 3, "claimed": 2, "done": 2, ...}   what happened in a second
 *     event: changed         data: {"what": "pause_queue", "queue": "orders"}                     a change by the API
 *     event: worker-joined   data: {"queue": "orders", "worker": "host/4711"}                     and worker-left
 *
 * E1  A client that does not read is dropped when KL_EVENTS_UNSENT_MAX bytes wait for it; nobody else notices.
 * E2  A client hears of queues of its token only.
 * E3  Without clients nothing is looked at, and a note costs one look at a counter.
 * E4  A client whose token was taken away is sent away when the tokens are read again. */
#ifndef KL_NET_EVENTS_H
#define KL_NET_EVENTS_H

#include "net/api.h"
#include "net/metrics.h"

enum {
    KL_EVENTS_CLIENTS_MAX = 256,
    KL_EVENTS_UNSENT_MAX = 256 << 10, /* bytes that a client may leave unread: 64 MiB for all of them */
    KL_EVENTS_NOTES_MAX = 1024,       /* notes that wait; more are dropped, and counted in event: dropped */
};

typedef struct kl__events kl__events;

/* Starts the thread that looks at the metrics each second. KL_ENOMEM, KL_ESYSTEM. */
KL_MUST_USE kl_rc kl__events_open(kl__metrics *metrics, kl__events **ret_events);

/* Ends all streams, and returns when they are; those that come later are refused. NULL is fine, here and below. One
 * thread at a time. */
void kl__events_stop(kl__events *events);
void kl__events_close(kl__events *events);

/* Answers the exchange with a stream; queue NULL: of all queues that it may see. On the loop's thread. */
void kl__events_follow(kl__events *events, kl__exchange *exchange, const char *queue);

/* Tokens were read again: those whose token is no longer in force are sent away. Any thread. */
void kl__events_recheck(kl__events *events);

/* Something was changed: a route's name, and the queue's (NULL: none). Any thread; never blocks on a client. */
void kl__events_note(kl__events *events, const char *what, const char *queue);

#endif
