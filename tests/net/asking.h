/* asking.h - a whole server on a memory store, asked over loopback as clients do. */
#ifndef TESTS_NET_ASKING_H
#define TESTS_NET_ASKING_H

#include <curl/curl.h>
#include <jansson.h>

#include "net/server.h"

struct asking {
    kl_store *store;
    kl__api *server;
    CURL *curl;
    struct curl_slist *headers; /* sent with every request from now on; the rig's */
    /* of the last answer */
    long status;
    char *text; /* with a terminator */
    size_t len;
    json_t *json; /* NULL: it is none */
    char type[64], retry_after[16];
};

/* opts NULL: nothing is stated; store and listen are the rig's in any case. False: a failure is recorded. */
bool asking_open(struct asking *rig, const kl__api_opts *opts);
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
