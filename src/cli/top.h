/* top.h - one look at a store: its queues, who works on them, and the keys with the longest lines.
 *
 * Reading order: top.c (the command, the terminal) -> top_look.c (reads the store) -> top_text.c (prints). */
#ifndef KL_CLI_TOP_H
#define KL_CLI_TOP_H

#include <stdio.h>

#include "cli/cli.h"
#include "keyline/control.h"

enum {
    KL_TOP_QUEUES_MAX = 200, /* that are looked at, in the order of their names */
    KL_TOP_WORKERS_MAX = 200,
    KL_TOP_KEYS_MAX = 10,
    KL_TOP_KEYS_EACH = 5,       /* of one queue */
    KL_TOP_KEYS_LOOK_MAX = 5000 /* tasks that are read for them: a look must stay cheap */
};

typedef struct kl__top_queue {
    const char *name;
    kl_queue_info info;
    uint64_t waiting, finished; /* finished: kept ones */
    double waiting_rate;        /* change in a second since the last look, */
    double finished_rate;
    bool has_rates; /* if there was one */
} kl__top_queue;

typedef struct kl__top_worker {
    const char *queue;
    kl_worker_status status;
} kl__top_worker;

typedef struct kl__top_key {
    const char *queue;
    kl_key_status status;
} kl__top_key;

/* Texts lie in the arena. */
typedef struct kl__top {
    kl_arena arena;
    int64_t now_ms; /* on the store's clock */
    int64_t at_ns;
    kl__top_queue queues[KL_TOP_QUEUES_MAX];
    size_t queue_count;
    bool more_queues;
    kl__top_worker workers[KL_TOP_WORKERS_MAX];
    size_t worker_count;
    kl__top_key keys[KL_TOP_KEYS_MAX]; /* the longest lines first */
    size_t key_count;
} kl__top;

/* Looks at the store; `before` (NULL: none) is the last look, for rates. The caller frees ret_top->arena. Errors as
 * those of the store. */
KL_MUST_USE kl_rc kl__top_look(kl_store *store, const kl__top *before, kl__top *ret_top);

/* As tables, each line ending in a newline; titles begin with \1. Not harmful for terminals. */
void kl__top_print(const kl__top *top, const char *store, FILE *out);

/* As an object on one line. KL_EXIT_OK, or it has complained. */
int kl__top_print_json(const kl__top *top, const char *store);

#endif
