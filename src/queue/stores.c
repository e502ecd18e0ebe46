/* stores.c - the stores that partitions of queues lie in, opened once in a process.
 *
 * From: layouts.c.  To: the store.
 *
 * A disk store has one handle in one process, and two queues may well have partitions in the same one, or one queue be
 * opened twice. So the handles are shared by the whole process, by their URLs, and counted. */
#include "queue/inside.h"

struct shared {
    struct shared *next;
    kl_store *store;
    uint64_t users;
    char url[];
};

static pthread_mutex_t shared_mutex = PTHREAD_MUTEX_INITIALIZER; /* also held while a store is opened or closed */
static struct shared *shared_first;

static struct shared *find(const char *url)
{
    struct shared *shared = shared_first;
    while (shared && strcmp(shared->url, url) != 0)
        shared = shared->next;
    return shared;
}

static kl_rc open_one(const char *url, struct shared **ret_shared)
{
    size_t bytes = strlen(url) + 1;
    struct shared *shared = kl__alloc(sizeof *shared + bytes);
    if (!shared)
        return kl__fail_memory();
    *shared = (struct shared){.next = shared_first};
    memcpy(shared->url, url, bytes);
    kl_rc rc = kl_store_open(url, NULL, &shared->store);
    if (rc != KL_OK) {
        kl__free(shared);
        return rc;
    }
    *ret_shared = shared_first = shared;
    return KL_OK;
}

kl_rc kl__store_share(const char *url, kl_store **ret_store)
{
    pthread_mutex_lock(&shared_mutex);
    struct shared *shared = find(url);
    kl_rc rc = shared ? KL_OK : open_one(url, &shared);
    if (rc == KL_OK) {
        shared->users++;
        *ret_store = shared->store;
    }
    pthread_mutex_unlock(&shared_mutex);
    return rc;
}

void kl__store_unshare(kl_store *store)
{
    pthread_mutex_lock(&shared_mutex);
    struct shared **link = &shared_first;
    while (*link && (*link)->store != store)
        link = &(*link)->next;
    struct shared *shared = *link;
    KL_ASSERT(shared && shared->users > 0);
    if (--shared->users == 0) {
        *link = shared->next;
        kl_store_close(shared->store);
        kl__free(shared);
    }
    pthread_mutex_unlock(&shared_mutex);
}
