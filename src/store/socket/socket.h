/* socket.h - a store for several processes: one has it open, the others reach it through a socket.
 *
 *      kl_store_append          the holder's process
 *            │                        ┌──────────────────────────────────────────┐
 *        shared.c ──── holds it ────► │ the disk engine ◄── kl_store_* ◄ server.c │
 *            │                        └──────────────────────────────────────▲───┘
 *            └─────── does not ──► client.c ═══ PATH/socket (wire.h) ════════╝
 *
 * N1  Only the holder of the directory makes, replaces or removes its socket.
 * N2  A handle is a client until it becomes the holder, and stays the holder until it is closed.
 * N3  A call is made twice only where that is safe (S5 of store.h). Where it is not, and the first may have been made,
 *     the caller is told: KL_EBUSY, whose class is RETRY.
 * N4  A handle is of one store, by its identity, whoever holds that: partition numbers mean others elsewhere. */
#ifndef KL_STORE_SOCKET_H
#define KL_STORE_SOCKET_H

#include <sys/un.h>

#include "keyline/store.h"

/* More connections than this wait until one ends. */
enum { KL_CONNECTIONS_MAX = 256 };

/* The address of the socket in the directory. A path that is too long for one is reached through *ret_fd, which the
 * caller closes when it has used the address; else that is -1. KL_ESYSTEM: there is no such directory. */
kl_rc kl__socket_address(const char *dir, struct sockaddr_un *ret_address, int *ret_fd);

/* ---- server.c ---- */

typedef struct kl__server kl__server;

/* Listens on a new socket in the directory, which this process holds, and makes the calls that come on `store`, until
 * it is stopped. The store stays the caller's, and stays open meanwhile. Clients are told its identity
 * (kl__store_identity). KL_ESYSTEM, KL_ENOMEM. */
kl_rc kl__server_start(kl_store *store, uint64_t identity, const char *dir, kl__server **ret_server);

/* One that listens nowhere: connections are handed to it. Stopped like the other. KL_ENOMEM. */
kl_rc kl__server_open(kl_store *store, uint64_t identity, kl__server **ret_server);

/* Serves a connection that was made elsewhere, and of which nothing was read; the descriptor is the server's now. Where
 * there are KL_CONNECTIONS_MAX already, the one that has been idle longest is closed for it, or it is itself, if all
 * are at work. `whose` is for kl__server_cut. Any thread. */
void kl__server_adopt(kl__server *server, int fd, const void *whose);

/* Is told, on the connection's own thread, when an adopted connection has ended, and whose it was. To be said before
 * any is adopted. */
typedef void kl__left_fn(void *ctx, const void *whose);
void kl__server_on_left(kl__server *server, kl__left_fn *left, void *ctx);

/* What a call that came over an adopted connection did, or was to do: one for each partition or record, and code. */
typedef struct kl__made {
    enum { KL_MADE_PARTITION, KL_MADE_APPEND, KL_MADE_SETTLE, KL_MADE_FENCE, KL_MADE_FORGET, KL_MADE_RECORD } call;
    uint32_t partition; /* of all but RECORD */
    kl_bytes name;      /* of RECORD, and of PARTITION: who asks for its number will use it in other calls */
    size_t count;       /* tasks, or shards; of RECORD 0: it is removed, 1: written */
    kl_rc rc;
} kl__made;

/* Is told of it, on the connection's own thread, when the call has returned. To be said before any is adopted. */
typedef void kl__made_fn(void *ctx, const void *whose, const kl__made *made);
void kl__server_on_made(kl__server *server, kl__made_fn *made, void *ctx);

/* Cuts adopted connections of those of whom may_stay says no, in the middle of a call, too. Any thread. */
typedef bool kl__may_stay_fn(void *ctx, const void *whose);
void kl__server_cut(kl__server *server, kl__may_stay_fn *may_stay, void *ctx);

/* Calls under way are completed and answered; those that come too late are told that they were not made. The socket is
 * gone, and what is adopted from now on is closed. Then stop, which frees it and does this first where it was not done.
 * NULL is fine. */
void kl__server_end(kl__server *server);
void kl__server_stop(kl__server *server);

/* A host at the other end that is gone without a word is noticed within a minute. For TCP; nothing happens to
 * others. */
void kl__socket_notice_silence(int fd);

/* ---- client.c ---- */

typedef struct kl__client kl__client;

/* What the calls of a client return beside the engine's codes: this process holds the store itself now, and the call,
 * of which nothing was done, goes there. */
#define KL_MOVED ((kl_rc)1)

/* Called when nobody listens, by one thread at a time: is the store without a holder? KL_OK: it was, and this process
 * holds it now. KL_EBUSY: no, or not known; try again. Else it is hopeless. */
typedef kl_rc kl__absent_fn(void *ctx);

/* A client of whoever holds the directory. `dir` stays the caller's, and there; it may change while no call is under
 * way. absent NULL: KL_EBUSY. KL_ENOMEM. */
kl_rc kl__client_open(const char *dir, kl__absent_fn *absent, void *ctx, kl__client **ret_client);

/* Connects in another way than by the socket in `dir`, which then only stands in sentences. KL_OK with a descriptor;
 * KL_EBUSY: nobody listens, or not now; others are final. To be set before anything else is called. */
typedef kl_rc kl__dial_fn(void *ctx, int *ret_fd);
void kl__client_dial(kl__client *client, kl__dial_fn *dial, void *ctx);

void kl__client_close(kl__client *client); /* NULL is fine */

/* Connects. KL_OK, KL_MOVED. KL_EBUSY: somebody holds the directory, but does not answer. KL_ESYSTEM: another store
 * stands there than the first time. */
kl_rc kl__client_connect(kl__client *client);

/* The identity of the store that it reached first; 0: none yet, or not known. Is this that one? KL_ESYSTEM: it is not,
 * or its `partitions` are fewer than callers have the numbers of. */
uint64_t kl__client_identity(const kl__client *client);
kl_rc kl__client_recognise(kl__client *client, uint64_t identity, uint32_t partitions);

uint32_t kl__client_can(const kl__client *client); /* KL_STORE_*; known once it has been connected */

/* The calls of an engine, whose self is a kl__client. */
kl_rc kl__client_now(void *self, int64_t *ret_ms);
kl_rc kl__client_partition(void *self, const char *name, uint32_t shard_prefix_len, uint32_t *ret_partition);
kl_rc kl__client_append(void *self, const kl_append *append);
kl_rc kl__client_scan(void *self, kl_scan *scans, size_t count);
kl_rc kl__client_read(void *self, const kl_ref *refs, size_t count, kl_arena *arena, kl_task *ret_tasks,
                      size_t *ret_count);
kl_rc kl__client_settle(void *self, kl_settle *batches, size_t count);
kl_rc kl__client_fence(void *self, kl_fence *fences, size_t count);
kl_rc kl__client_counts(void *self, kl_place place, const kl_task_id *job, kl_counts *ret_counts);
kl_rc kl__client_wait(void *self, uint32_t partition, int64_t wait_ms, uint64_t *seen);
kl_rc kl__client_results(void *self, kl_place place, const kl_task_id *job, const kl_task_id *after, size_t max,
                         kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
kl_rc kl__client_find(void *self, const kl_find *find, kl_arena *arena, kl_task *ret_tasks, size_t *ret_count);
kl_rc kl__client_forget(void *self, kl_place place, const kl_task_id *ids, size_t count);
kl_rc kl__client_get(void *self, const kl_bytes *names, size_t count, kl_arena *arena, kl_record *ret_records);
kl_rc kl__client_put(void *self, kl_write *writes, size_t count);
kl_rc kl__client_list(void *self, kl_bytes prefix, kl_bytes after, size_t max, kl_arena *arena, kl_record *ret_records,
                      size_t *ret_count);

/* ---- shared.c ---- */

/* disk:PATH as kl_store_open opens it: the directory itself, or whoever holds it. */
extern const kl_engine kl__engine_shared;

/* What this handle can do now, and its store's identity; with the self of kl__engine_shared. */
uint32_t kl__shared_can(const void *self);
uint64_t kl__shared_identity(const void *self);

#endif
