/* stores.c - the stores that partitions of queues lie in, opened once in a process.
 *
 * From: layouts.c.  To: the store.
 *
 * A disk store has one handle in one process, and two queues may well have partitions in the same one, or one queue be
 * opened twice. So the handles are shared by the whole process, by their URLs, and counted.
 *
 * They are hasty: while one is away, the others are used.
 *
 * A URL that goes into a queue's record is read by others, who have other current directories: there it is absolute. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

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

static kl_rc open_one(const char *url, bool may_make, struct shared **ret_shared)
{
    size_t bytes = strlen(url) + 1;
    struct shared *shared = kl__alloc(sizeof *shared + bytes);
    if (!shared)
        return kl__fail_memory();
    *shared = (struct shared){.next = shared_first};
    memcpy(shared->url, url, bytes);
    kl_store_opts opts = {.size = sizeof opts, .hasty = true, .no_make = !may_make};
    kl_rc rc = kl_store_open(url, &opts, &shared->store);
    if (rc != KL_OK) {
        kl__free(shared);
        return rc;
    }
    *ret_shared = shared_first = shared;
    return KL_OK;
}

kl_rc kl__store_share(const char *url, bool may_make, kl_store **ret_store)
{
    pthread_mutex_lock(&shared_mutex);
    struct shared *shared = find(url);
    kl_rc rc = shared ? KL_OK : open_one(url, may_make, &shared);
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

/* --- Absolute URLs --- */

static const char disk[] = "disk:", standard[] = "keyline-data";

static bool is_relative(const char *url)
{
    return strncmp(url, disk, sizeof disk - 1) == 0 && url[sizeof disk - 1] != '/';
}

/* `disk:./other`, `disk:other` and `disk:` as directories of this process's current one. */
static kl_rc make_absolute(const char *url, kl_arena *arena, const char **ret_url)
{
    char here[PATH_MAX];
    const char *path = url + sizeof disk - 1;
    while (strncmp(path, "./", 2) == 0)
        path += strspn(path + 1, "/") + 1;
    path = *path ? path : standard;
    if (!getcwd(here, sizeof here))
        return kl__fail(KL_ESYSTEM,
                        "the current directory, which %s counts from, cannot be told (%s); write its whole path", url,
                        strerror(errno));
    size_t size = sizeof disk + strlen(here) + 1 + strlen(path);
    char *whole = kl_arena_alloc(arena, size);
    if (!whole)
        return kl__fail_memory();
    snprintf(whole, size, "%s%s/%s", disk, strcmp(here, "/") == 0 ? "" : here, path);
    *ret_url = whole;
    return KL_OK;
}

kl_rc kl__stores_absolute(kl_queue_opts *stated, kl_arena *arena)
{
    const char **urls = kl_arena_alloc(arena, stated->store_count * sizeof *urls + 1);
    kl_rc rc = urls ? KL_OK : kl__fail_memory();
    for (size_t i = 0; rc == KL_OK && i < stated->store_count; i++) {
        urls[i] = stated->stores[i];
        if (is_relative(urls[i]))
            rc = make_absolute(urls[i], arena, &urls[i]);
    }
    if (rc == KL_OK && stated->store_count > 0)
        stated->stores = urls;
    return rc;
}
