/* open.c - opens what commands work on: the store that the settings name, and queues in it.
 *
 * Libraries return, programs log: what the store tells goes to standard error, as much of it as --log asks for. */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "keyline/queue.h"
#include "store/postgres/migrate.h"

void kl__log_print(void *ctx, kl_log_level level, const char *text)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const kl__config *config = ctx;
    if ((int64_t)level < config->values[KL_SET_LOG].number)
        fprintf(stderr, "keyline: %s: %s\n", names[level], text);
}

/* ---- The store ---- */

static bool has(const char *directory, const char *name)
{
    char path[PATH_MAX];
    struct stat about;
    return snprintf(path, sizeof path, "%s/%s", directory, name) < (int)sizeof path && stat(path, &about) == 0;
}

static int complain_of_none(const char *sentence)
{
    kl__complain_of(KL_ENOTFOUND, KL_EXIT_NOT_FOUND, sentence ? sentence : "there is no such store");
    return KL_EXIT_NOT_FOUND;
}

static int check_schema(kl__call *call, const char *url)
{
    kl__pg_versions versions;
    kl_rc rc = kl__pg_migrate(url, true, &versions);
    if (rc != KL_OK || versions.before > 0)
        return kl__fail_given(rc);
    return complain_of_none(
        kl__format(&call->arena,
                   "there is no schema %s in that database; name another with schema= in the URL, or "
                   "make it by `keyline migrate`",
                   versions.schema));
}

/* Opening makes a disk store or a schema where there is none, which is not what somebody means who only looks. */
static int check_there(kl__call *call, const char *url)
{
    static const char disk[] = "disk:";
    if (kl__pg_is_url(url))
        return check_schema(call, url);
    const char *directory = url + sizeof disk - 1;
    if (strncmp(url, disk, sizeof disk - 1) != 0 || has(directory, "journal") || has(directory, "history.db") ||
        errno == EACCES) /* opening says so */
        return KL_EXIT_OK;
    return complain_of_none(kl__format(&call->arena,
                                       "there is no store in %s; name the directory of one with --store, or make it by "
                                       "`keyline push`, `work`, `serve` or `queue create`",
                                       directory));
}

int kl__call_make_store(kl__call *call)
{
    kl_store_opts opts = {.size = sizeof opts, .log = kl__log_print, .log_ctx = call->config};
    if (call->store)
        return KL_EXIT_OK;
    return kl__fail_given(kl_store_open(call->config->values[KL_SET_STORE].text, &opts, &call->store));
}

int kl__call_store(kl__call *call)
{
    int status = call->store ? KL_EXIT_OK : check_there(call, call->config->values[KL_SET_STORE].text);
    return status == KL_EXIT_OK ? kl__call_make_store(call) : status;
}

/* ---- Queues ---- */

static void keep(kl__call *call, kl_queue *queue)
{
    int at = 0;
    while (at < KL_CALL_QUEUES_MAX && call->queues[at])
        at++;
    KL_ASSERT(at < KL_CALL_QUEUES_MAX);
    call->queues[at] = queue;
}

int kl__call_find(kl__call *call, const char *name, kl_queue **ret_queue)
{
    int status = kl__call_store(call);
    kl_queue *queue;
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_queue_find(call->store, name, &queue);
    if (rc != KL_OK)
        return kl__fail_given(rc);
    keep(call, queue);
    *ret_queue = queue;
    return KL_EXIT_OK;
}

/* No queue has __p in its name, so what stands before that names the queue; whether this is a partition of it, is for
 * the one who is asked about it to say. */
int kl__call_find_partition(kl__call *call, const char *name, kl_queue **ret_queue, const char **ret_partition)
{
    const char *suffix = strstr(name, "__p");
    const char *queue = suffix ? kl__format(&call->arena, "%.*s", (int)(suffix - name), name) : name;
    *ret_partition = suffix ? name : NULL;
    return queue ? kl__call_find(call, queue, ret_queue) : kl__fail_call(kl__fail_memory());
}

int kl__call_open_as(kl__call *call, const char *name, const kl_queue_opts *stated, kl_queue **ret_queue)
{
    int status = kl__call_make_store(call);
    kl_queue *queue;
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = kl_queue_open(call->store, name, stated, &queue);
    if (rc != KL_OK)
        return kl__fail_given(rc); /* another layout than stated is KL_EMISMATCH, and so 4 */
    keep(call, queue);
    *ret_queue = queue;
    return KL_EXIT_OK;
}

int kl__call_open(kl__call *call, const char *name, kl_queue **ret_queue)
{
    kl_queue_opts opts;
    kl_rc rc = kl__config_queue_opts(call->config, name, false, &call->arena, &opts);
    return rc == KL_OK ? kl__call_open_as(call, name, &opts, ret_queue) : kl__fail_call(rc);
}

void kl__call_close(kl__call *call)
{
    for (int i = 0; i < KL_CALL_QUEUES_MAX; i++)
        kl_queue_close(call->queues[i]);
    kl_store_close(call->store);
}
