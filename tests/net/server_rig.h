/* server_rig.h - a whole server in the test's process, on a memory store, and a client that sees headers and streams
 * too.
 *
 *     struct server server;
 *     if (!server_open(&server, NULL)) return;
 *     struct answer answer = server_ask(&server, "POST", "/v1/queues/q/tasks", "{\"payload\": \"x\"}", NULL);
 *     CHECK_INT(answer.status, 201);
 *     answer_free(&answer);
 *     server_close(&server); */
#ifndef TESTS_NET_SERVER_RIG_H
#define TESTS_NET_SERVER_RIG_H

#include <jansson.h>

#include "net/server.h"

struct server {
    kl_store *store;
    kl__api *api;
    char url[64];
};

/* opts NULL: nothing is stated; store and listen are the rig's in any case. False: a failure is recorded. */
bool server_open(struct server *server, const kl__api_opts *opts);
void server_close(struct server *server);

struct answer {
    long status;        /* 0: there was none, which is recorded */
    char headers[4096]; /* as they came, with the status line */
    char *body;         /* with a zero byte behind; NULL: none */
    size_t len;
    json_t *json; /* NULL: the body is none */
};

/* Whether to go on reading; told of the body so far. */
typedef bool answer_fn(void *ctx, const char *body);

/* Asks and waits. body NULL: none. fields: further lines ("Idempotency-Key: a"), ended by NULL; NULL: none. Of a stream
 * only the head is waited for, or with `follow` what comes until that says that it is enough. */
struct answer server_ask(struct server *server, const char *method, const char *path, const char *body,
                         const char *const *fields);
struct answer server_follow(struct server *server, const char *path, const char *const *fields, answer_fn *more,
                            void *ctx);
void answer_free(struct answer *answer);

/* Says these bytes on a connection of its own, together with the end of what it says if `ends`, and returns what comes
 * until the server closes it; to be freed. NULL: a failure is recorded. */
char *server_say(struct server *server, const char *text, bool ends);
int server_dial(struct server *server, const char *text); /* says it, and leaves the rest to the caller; -1: failed */

/* The text or number of a field of the answer's JSON; "" and -1: there is none. */
const char *answer_text(const struct answer *answer, const char *field);
int64_t answer_number(const struct answer *answer, const char *field);

/* A header of the answer, without its name; "" when it is not there. */
const char *answer_header(const struct answer *answer, const char *name, char *buffer, size_t size);

/* Asks, checks the status, and frees the answer. */
void server_do(struct server *server, const char *method, const char *path, const char *body, int status);

/* ---- Question after question ---- */

/* A server, and the last answer that it gave. */
struct asking {
    struct server server;
    struct answer answer;
};

bool asking_open(struct asking *rig, const kl__api_opts *opts); /* as server_open */
void asking_close(struct asking *rig);

/* Asks, and returns the status; body NULL: none. Bodies are application/json. */
long asking_say(struct asking *rig, const char *method, const char *path, const char *body);
long asking_send(struct asking *rig, const char *method, const char *path, const char *type, kl_bytes body);

/* A field of the last answer: the text, "null", "true" or the number; "" when it is not there. `path` is
 * "items.0.key". Valid until the next call. */
const char *asking_field(const struct asking *rig, const char *path);

/* The last answer is this problem, and its sentence contains `part`. */
void check_problem(const struct asking *rig, const char *file, int line, const char *name, const char *part);
#define CHECK_PROBLEM(rig, name, part) check_problem(rig, __FILE__, __LINE__, name, part)

#endif
