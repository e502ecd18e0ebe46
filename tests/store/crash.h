/* crash.h - a process is killed under load, again and again, and what it leaves is held against what it was told.
 *
 *      crash_run.c    rounds: fork, let it work, kill -9 (and, on the way, stop it and copy the directory), check
 *      crash_load.c   the process: producers and settlers, which note everything in the ledger
 *      crash_check.c  opens what is left and compares
 *      crash.c        the program crash-store; test_crash.c runs the same in the suite
 *
 * The ledger is memory that both processes share, so it outlives the kill. Every effect is noted twice: before the
 * call, as attempted, and behind it, as acknowledged. What a task is made of, and how each of its attempts ends,
 * follows from its serial number alone, so only numbers are noted.
 *
 * C1  An acknowledged append is waiting, or a settle of it was attempted. One that was only attempted is there whole or
 *     not at all.
 * C2  An acknowledged settle holds; one that was only attempted holds for its whole batch or not at all.
 * C3  Nothing exists that was not attempted: no task, no kept task, no record.
 * C4  In each shard, the positions of one producer's tasks are in the order of its appends.
 * C5  Below an acknowledged fence nothing is settled; at one that was attempted everything is.
 * C6  A record is what was last acknowledged, or what was attempted behind it.
 * C7  A task to be kept is in history exactly once, with its outcome, error and result.
 * C8  An append that is repeated with its token stores nothing twice, acknowledged or not.
 * C9  A shard whose seal was acknowledged takes no task; one that nobody tried to seal does. */
#ifndef TESTS_STORE_CRASH_H
#define TESTS_STORE_CRASH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "keyline/store.h"
#include "workdir.h"

enum {
    CRASH_SHARDS = 16,
    CRASH_PRODUCERS = 8,
    CRASH_SETTLERS = 3,
    CRASH_RECORDS = 16,
    CRASH_SEALS = 4096, /* shards of a partition of its own, sealed one after the other */
    CRASH_SEALS_PREFIX_LEN = 3,
    CRASH_SLOTS = 1 << 16, /* tasks that are not forgotten yet */
    CRASH_CALL_MAX = 64,   /* tasks in one call */
    CRASH_ATTEMPTS_MAX = 5,
    CRASH_TEXT_BYTES = 512,
};

enum { CRASH_NONE, CRASH_ATTEMPTED, CRASH_ACKNOWLEDGED };

/* One task. Slots are used again when their task is forgotten, under another serial number. */
struct crash_task {
    uint64_t serial;    /* its slot, and above that how often the slot was used; 0: free */
    uint64_t order;     /* among its producer's */
    uint64_t call;      /* the serial number of the first task of its append */
    uint16_t call_size; /* how many tasks that had */
    uint8_t producer;
    _Atomic uint8_t appended;
    _Atomic uint8_t settling; /* the last attempt whose settle was attempted; 0: none */
    _Atomic uint8_t settled;  /* and was acknowledged */
};

/* Tasks of one call. */
struct crash_call {
    _Atomic uint32_t state; /* CRASH_* */
    uint32_t count;
    uint64_t serials[CRASH_CALL_MAX];
    uint8_t attempts[CRASH_CALL_MAX]; /* of a settle */
};

struct crash_ledger {
    uint64_t seed, round;
    int64_t base_ms; /* due times count from here */
    uint32_t partition;
    _Atomic uint64_t uses; /* serial numbers given out */
    _Atomic uint64_t calls;
    _Atomic int64_t waiting; /* about so many tasks */
    _Atomic bool is_open;
    _Atomic bool has_failed;
    char failure[CRASH_TEXT_BYTES];

    uint64_t orders[CRASH_PRODUCERS];
    struct crash_call told[CRASH_PRODUCERS];    /* the last append with a token that was acknowledged */
    struct crash_call telling[CRASH_PRODUCERS]; /* and the one under way */
    struct crash_call settles[CRASH_SETTLERS];

    _Atomic uint64_t fencing[CRASH_SHARDS], fenced[CRASH_SHARDS];
    _Atomic uint32_t sealing, sealed;                                /* shards, from the first on */
    _Atomic uint64_t writing[CRASH_RECORDS], written[CRASH_RECORDS]; /* how often */
    _Atomic uint64_t versions[CRASH_RECORDS];                        /* of what was acknowledged */

    uint32_t free_slots[CRASH_SLOTS];
    uint32_t free_count;
    _Atomic uint32_t free_next;
    struct crash_task tasks[CRASH_SLOTS];
};

/* ---- What follows from a number (crash_load.c) ---- */

/* A task as it is appended; its bytes lie in `room`, which has CRASH_ENTRY_BYTES. */
enum { CRASH_ENTRY_BYTES = 512 << 10 };
void crash_entry(const struct crash_ledger *ledger, uint64_t serial, char *room, kl_entry *ret_entry);
uint64_t crash_serial(const kl_task_id *id);
uint32_t crash_shard(uint64_t serial);
kl_task_id crash_id(uint64_t serial);
kl_token crash_token(uint64_t serial);

/* How an attempt ends. Bytes lie in `room`. */
enum { CRASH_SETTLED_BYTES = 256 };
kl_settled crash_settled(uint64_t serial, uint32_t attempt, char *room);

/* The partition whose shards are sealed, and a task for one of them. */
#define CRASH_SEALS_NAME "sealed"
kl_task_id crash_sealed_id(uint32_t shard);

/* The value after so many writes; false: the record was removed. */
enum { CRASH_VALUE_BYTES = 8 << 10 };
bool crash_value(uint64_t seed, uint32_t record, uint64_t writes, char *room, kl_bytes *ret_value);
kl_bytes crash_name(uint32_t record, char room[16]);

uint64_t crash_hash(uint64_t a, uint64_t b);

/* ---- The parts ---- */

/* Opens the store and works on it until it is killed. When it ends by itself, ledger->failure says what it did not
 * expect. */
_Noreturn void crash_load(struct crash_ledger *ledger, const char *dir);

/* The store as a check finds it. */
struct crash_found {
    uint64_t waiting, kept, segments;
};

/* Opens `dir`, compares, settles in the ledger what was open, and closes. False: they differ; `why` says how. */
bool crash_check(struct crash_ledger *ledger, const char *dir, struct crash_found *ret_found,
                 char why[CRASH_TEXT_BYTES]);

kl_rc crash_open(const char *dir, kl_store **ret_store);

struct crash_opts {
    uint64_t rounds, seed;
    uint64_t calls_max;   /* a round is killed after up to so many acknowledged calls */
    uint64_t images_each; /* copies of the stopped process's directory that are checked in each round */
    bool tells;           /* a line for each round */
};

/* False: a check failed; what was printed says how, and the directory is left for a look. */
bool crash_run(const struct crash_opts *opts);

#endif
