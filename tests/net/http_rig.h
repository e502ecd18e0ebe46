/* http_rig.h - a server with a few paths of its own, and clients that say exactly what they are told to.
 *
 *     /echo        answers at once with the request's body
 *     /later       the same, by another thread
 *     /hold        answers when the test says so (rig_release), and tells when its client is gone
 *     /large       2 MiB, from the request's arena
 *     /about       "METHOD PATH minor local secure", and fields that try to break out of their line
 *     /stream      an answer without an end, which the test fills (rig_send, rig_end)
 *     /upgrade     hands the connection over to a thread that sends back what it gets */
#ifndef TESTS_NET_HTTP_RIG_H
#define TESTS_NET_HTTP_RIG_H

#include <pthread.h>

#include "base/wait.h"
#include "net/http.h"

enum { RIG_HELD_MAX = 64, RIG_LARGE = 2 << 20, RIG_WAIT_MS = 60000 };

struct rig {
    kl__http_opts opts; /* set before rig_open, all but listen, serve and ctx */
    bool on_unix;       /* listen on a Unix socket */
    kl__http *http;
    char address[128];
    const char *addresses[1];

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    kl__request *held[RIG_HELD_MAX]; /* by /hold and /stream, in the order in which they came */
    size_t held_count;
    size_t gone;        /* clients of held requests that have gone */
    kl__request *later; /* a list by `serving` */
    bool ending;
    pthread_t worker;
    pthread_t upgraded[RIG_HELD_MAX];
    size_t upgraded_count, upgrades_broken;
};

/* False: a failure is recorded. */
bool rig_open(struct rig *rig);
void rig_close(struct rig *rig); /* answers what is held with 503 first */

/* Waits until so many are held, or have gone. False: that takes too long, which is recorded. */
bool rig_await_held(struct rig *rig, size_t count);
bool rig_await_gone(struct rig *rig, size_t count);
kl__request *rig_take(struct rig *rig);        /* the first that is held */
void rig_release(struct rig *rig, int status); /* answers the first that is held, with "released" */

/* Waits until kl__http_counted says so. */
bool rig_await_connections(struct rig *rig, uint64_t count);
bool rig_await_received(struct rig *rig, uint64_t bytes); /* at least so many, of all connections */

/* ---- Clients ---- */

struct client {
    int fd;
    char bytes[1 << 16]; /* received and not taken yet */
    size_t len;
};

struct reply {
    int status;
    char head[4096]; /* with its terminator */
    char *body;
    size_t body_len;
};

bool client_open(struct rig *rig, struct client *client);
void client_close(struct client *client);
bool client_say(struct client *client, const void *bytes, size_t len);
bool client_say_text(struct client *client, const char *text);

/* One answer; is_head: it has no body whatever its length says. False: the connection ended before. */
bool client_hear(struct client *client, bool is_head, struct reply *ret_reply);
bool client_hear_end(struct client *client);   /* nothing but the end comes */
size_t client_hear_all(struct client *client); /* until the end, into bytes; what does not fit is thrown away */
bool client_hear_bytes(struct client *client, const char *text); /* exactly these come next */
void reply_free(struct reply *reply);

/* Says it on a connection of its own, hears one answer, and checks status and body (NULL: any). */
void check_ask(struct rig *rig, const char *text, int status, const char *body);

#endif
