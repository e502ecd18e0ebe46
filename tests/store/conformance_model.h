/* conformance_model.h - a naive model of a store: every task in one array, every question answered by looking at all.
 *
 * conformance_random.c changes store and model alike; the checks here compare what the store shows with what the model
 * says. The model shares no idea with any engine but the contract. A task's payload is its number in the array. */
#ifndef TESTS_STORE_CONFORMANCE_MODEL_H
#define TESTS_STORE_CONFORMANCE_MODEL_H

#include "store/conformance.h"

enum {
    MODEL_PLACES = 6,
    MODEL_RECORDS = 24,
    MODEL_JOBS = 4,
    MODEL_ATTEMPTS = 8,
    MODEL_APPENDS = 16,
    MODEL_ENTRIES = 6
};

struct model_task {
    kl_entry entry; /* payload in `number`, the rest in tables */
    char number[24];
    int place;
    int32_t line;      /* NOWHERE: it does not wait */
    uint64_t position; /* 0: not seen yet */
    uint32_t attempts;
    int64_t not_before_ms;
    kl_task_state state;
    int64_t finished_ms;
    const char *errors[MODEL_ATTEMPTS]; /* of the attempts whose errors are kept, in order */
    int error_count;
    const char *result;
};

struct model_record {
    char name[24];
    bool there;
    uint64_t version;
    char value[32];
    int64_t expires_ms;
    uint64_t *versions; /* all that it ever had */
    size_t version_count;
};

/* An append that had a token, to be repeated later. */
struct model_append {
    kl_entry entries[MODEL_ENTRIES];
    size_t count;
    kl_token token;
};

struct model {
    struct trial *t;
    kl_store *store; /* what operations are made on; what is shown is looked up in t->store */
    bool lossy;
    uint64_t random;
    kl_place places[MODEL_PLACES];
    uint64_t fences[MODEL_PLACES];
    bool seals[MODEL_PLACES];
    kl_task_id jobs[MODEL_JOBS];
    struct model_task *tasks;
    size_t count, room;
    struct model_append appends[MODEL_APPENDS];
    struct model_record records[MODEL_RECORDS];
    uint64_t values; /* written so far, so that each is unique */
};

bool model_open(struct model *m, struct trial *t, uint64_t seed, size_t room);
void model_close(struct model *m);

uint64_t model_below(struct model *m, uint64_t bound);
int64_t model_now(const struct model *m);

/* An error text, or NULL; and words that occur in some of them. */
const char *model_error(struct model *m);
const char *model_words(struct model *m);

/* A waiting task in this place, from a random one on; NULL: none waits. */
struct model_task *model_waiting(struct model *m, int place);

bool model_record_live(const struct model *m, const struct model_record *record);
void model_record_version(struct model_record *record, uint64_t version); /* fails the test when it was used before */

/* The store shows what the model says. */
void model_check_line(struct model *m, int place, int32_t line);
void model_check_counts(struct model *m);
void model_check_task(struct model *m, size_t number);
void model_check_find(struct model *m);
void model_check_results(struct model *m, int place, int job);
void model_check_get(struct model *m);
void model_check_list(struct model *m);
void model_check_all(struct model *m);

#endif
