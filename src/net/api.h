/* api.h - the HTTP API: from a request to a call of the library, and from what came of it to an answer.
 *
 *     http.c ─► routes.c (which route? may they?) ─► a handler ─► kl__reply_*  ─► http.c
 *                                                     │ on the loop's thread (NOW: must not block), or
 *                                                     └ on a thread of the pool, where it may
 *
 * Reading order: routes.h (the table) -> routes.c -> api_body.c, reply.c (in and out) -> api_put.c, api_claim.c (the
 * data path) -> the other api_*.c (what people look at and steer) -> server.c (all of it together).
 *
 * A1  Every exchange is answered exactly once.
 * A2  Nothing is looked at in a request before its token's role was compared with its route's.
 * A3  Input is refused as a whole with one sentence that names the field and says what to do; nothing is done then. */
#ifndef KL_NET_API_H
#define KL_NET_API_H

#include <jansson.h>

#include "keyline/queue.h"
#include "net/http.h"
#include "queue/json.h"

typedef struct kl__api kl__api; /* the server as handlers see it: server.h */
typedef struct kl__exchange kl__exchange;
typedef struct kl__open_queue kl__open_queue;

typedef enum kl__role {
    KL_ROLE_ANYONE,  /* no token: /healthz, /readyz */
    KL_ROLE_READ,    /* look */
    KL_ROLE_OPERATE, /* and put, claim, settle, steer tasks and keys */
    KL_ROLE_ADMIN,   /* and make, alter and remove queues, and all else */
} kl__role;

typedef void kl__handler_fn(kl__exchange *exchange);

enum { KL_ROUTE_PARTS_MAX = 4, KL_PARAMS_MAX = 16 };

enum {
    KL_ROUTE_NOW = 1 << 0,     /* its handler does not block and runs on the loop's thread */
    KL_ROUTE_CHANGES = 1 << 1, /* what it does is written to the audit log */
    KL_ROUTE_OPENS = 1 << 2,   /* {queue} is made where it is not, by the handler, when it has read the body */
    KL_ROUTE_AUDITED = 1 << 3, /* is written there, too, and is no change itself */
    KL_ROUTE_LONG = 1 << 4,    /* may take many seconds: runs apart from what others wait for */
};

typedef struct kl__route {
    kl__method method;
    const char *path; /* "/v1/queues/{queue}/tasks/{id}" */
    kl__role role;
    unsigned flags;
    kl__handler_fn *handler;
    const char *name;    /* "read_task": operationId in openapi.json, and in logs and metrics */
    const char *summary; /* a sentence */
} kl__route;

extern const kl__route kl__routes[];
extern const size_t kl__route_count;

typedef struct kl__param {
    kl_bytes name, value;
    bool used;
} kl__param;

/* One request on its way. Lies in the request's arena. */
struct kl__exchange {
    kl__api *api;
    kl__request *request;
    const kl__route *route;
    kl_arena *arena; /* the request's */
    kl_bytes parts
        [KL_ROUTE_PARTS_MAX]; /* what stood in place of {queue}, {id}, in their order; unescaped, with a zero byte behind */
    kl_store *store;
    kl_queue *queue;                            /* of {queue}, when the route has one; open until the answer */
    kl__open_queue *open;                       /* what keeps it so */
    kl__open_queue *others[KL_ROUTE_PARTS_MAX]; /* kl__exchange_queue */
    const char *scope;                          /* queues that who may use, as tokens.h has it; NULL: all */
    const char *who;                            /* the name of the token, "socket", or "anyone" */
    kl__role role;
    kl__param params[KL_PARAMS_MAX]; /* of the query */
    size_t param_count;
    bool failed; /* a param or field was refused: the answer will say `complaint` */
    char complaint[512];
    void *serving;           /* the handler's own */
    kl__handler_fn *handler; /* on the pool */
    kl__exchange *next;      /* in the pool's line */
};

/* ---- Out: reply.c. Each answers, once; afterwards the exchange is gone. ---- */

/* JSON. The body is taken over; NULL (out of memory) becomes 503. */
void kl__reply(kl__exchange *exchange, int status, json_t *body);
void kl__reply_none(kl__exchange *exchange); /* 204 */
void kl__reply_bytes(kl__exchange *exchange, int status, const char *type, kl_bytes bytes);
void kl__reply_with(kl__exchange *exchange, int status, json_t *body, const kl__field *fields, size_t count);

/* What a failed call of the library becomes, by its code, with its sentence (kl_error_text) as detail: KL_EINVAL 400,
 *     KL_ENOTFOUND 404, KL_ECONFLICT and KL_ESTALE 409, KL_EMISMATCH 422 or 409, KL_EBUSY 409 with Retry-After,
 *     KL_EFULL 507, KL_ETIMEDOUT 504, KL_ENOMEM 503, all others 500. */
void kl__reply_rc(kl__exchange *exchange, kl_rc rc);

/* problem+json: {"type": "/problems/NAME", "title", "status", "detail"}: a stable name ("bad-request", "stale-token"; a
 * row of the table in reply.c, which docs/http.md lists), and a sentence that says what is wrong with this one and what
 * to do. */
void kl__reply_problem(kl__exchange *exchange, int status, const char *name, const char *format, ...) KL_PRINTF(4, 5);
/* The same with a header that such an answer must have. */
void kl__reply_problem_with(kl__exchange *exchange, int status, const char *name, const kl__field *field,
                            const char *detail);

/* ---- In: api_body.c ---- */

/* Parameters of the query. Getters note the first that is wrong; then kl__params_refused answers with 400 and is true,
 * also when a parameter was given that nobody asked for. To be called after all of them. */
kl_bytes kl__param_text(kl__exchange *exchange, const char *name); /* none: no bytes; a zero byte behind */
int64_t kl__param_int(kl__exchange *exchange, const char *name, int64_t min, int64_t max, int64_t otherwise);
bool kl__param_flag(kl__exchange *exchange, const char *name); /* "true", "1" or empty; "false", "0" or not there */
int64_t kl__param_time(kl__exchange *exchange,
                       const char *name); /* RFC 3339 or milliseconds since 1970; 0: not there */
int kl__param_choice(kl__exchange *exchange, const char *name,
                     const char *choices);                         /* "a|b|c": 1, 2, 3; 0: not there */
kl_task_id kl__param_id(kl__exchange *exchange, const char *name); /* all zero: not there */
bool kl__params_refused(kl__exchange *exchange);

enum { KL_BODY_DEPTH_MAX = 32 }; /* objects and arrays inside each other */

/* The body as one JSON object; an empty body is an empty object. False: it has answered (400, or 415: of another type).
 * `fields`: names that are known, ended by NULL; others are refused by name; NULL: any. After the kl__json_* getters,
 * whose results lie in the arena, kl__body_refused frees the object, and answers with 400 if one of them failed. */
bool kl__body_json(kl__exchange *exchange, const char *const *fields, kl__json *ret_body);
int64_t kl__body_time(kl__json *body, const char *field); /* a getter: as kl__param_time */
/* A getter: text or {"base64": "..."} as those bytes, any other JSON as its text; none: no bytes. */
kl_bytes kl__body_any(kl__json *body, const char *field, kl_arena *arena);
void kl__body_known(kl__json *from,
                    const char *const *fields); /* refuses others, as kl__body_json; for an item of it */
bool kl__body_refused(kl__exchange *exchange, kl__json *body);

/* For routes that take neither parameters nor a body. False: it has answered. */
bool kl__body_none(kl__exchange *exchange);

/* Whether Content-Type says this, with parameters or without. */
bool kl__body_is(const kl__exchange *exchange, const char *type);

/* {id}, the n-th part, as a task's or job's id. False: it has answered. */
bool kl__part_id(kl__exchange *exchange, size_t part, kl_task_id *ret_id);
const char *kl__part_text(const kl__exchange *exchange, size_t part); /* cut at a zero byte */

/* ---- Shapes that several handlers write: api_shapes.c ---- */

json_t *kl__shape_task(const kl_found *found); /* NULL: out of memory, as of all here */
json_t *kl__shape_time(int64_t ms);            /* RFC 3339; 0 and KL_NEVER: null */
json_t *kl__shape_id(const kl_task_id *id);    /* all zero: null */
json_t *kl__shape_text(const char *text);      /* NULL and "": null */
json_t *kl__shape_bytes(kl_bytes bytes);       /* none: null */
json_t *kl__shape_number(int64_t number);      /* 0: null */
json_t *kl__shape_account(const kl_account *account);

/* A page: {"items": [...], "cursor": "..." or null}. Takes items over. */
json_t *kl__shape_page(json_t *items, kl_bytes cursor);
json_t *kl__shape_tasks(const kl_found *found, size_t count, kl_bytes cursor);

/* A task to be put, from an object with the fields of `keyline push --file` lines (docs/http.md); texts lie in the
 * arena. False: a sentence is in `complaint`, which names the field. */
bool kl__shape_put(json_t *object, int64_t now_ms, kl_arena *arena, kl_put *ret_task, char *complaint, size_t room);

/* ---- Queues that are open: server.c ---- */

bool kl__route_has_queue(const kl__route *route);

/* Whether the token is for this queue, which a body or parameter names. False: it has answered. */
bool kl__exchange_may(kl__exchange *exchange, const char *queue);

/* Another queue than {queue}, for moves, after kl__exchange_may; closed with the exchange. KL_ENOTFOUND, and as
 * kl_queue_find. May block. */
kl_rc kl__exchange_queue(kl__exchange *exchange, const char *name, kl_queue **ret_queue);

/* Opens {queue}, or makes it where the route does that (KL_ROUTE_OPENS: its handler begins without it). May block. */
kl_rc kl__exchange_open(kl__exchange *exchange);

#endif
