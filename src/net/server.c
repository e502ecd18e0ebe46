/* server.c - everything that a server is made of, opened, stopped and closed in order. See server.h. */
#include "net/server.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wait.h"
#include "net/forward.h"
#include "store/quick.h"
#include "store/socket/socket.h"

/* END_MS: at a stop, for outcomes to be settled and shards to be given back, when nothing runs any more. */
enum {
    POOL_THREADS = 8,
    LONG_THREADS = 4,
    FORWARD_THREADS = 4,
    KEEPER_MS = 5000,
    EXCHANGES_MS = 2,
    END_MS = 5000,
    SOCKET_PATH_MAX = 100
};

void kl__api_log(const kl__api *api, kl_log_level level, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    api->opts.log(api->opts.log_ctx, level, text);
}

/* ---- The keeper ---- */

/* What has to be done from time to time, until the server ends. */
static void keep(kl__api *api, void (*work)(kl__api *api))
{
    pthread_mutex_lock(&api->keeper_mutex);
    while (!api->keeper_ends) {
        pthread_mutex_unlock(&api->keeper_mutex);
        work(api);
        pthread_mutex_lock(&api->keeper_mutex);
        if (!api->keeper_ends)
            kl__cond_wait(&api->keeper_wake, &api->keeper_mutex, kl__deadline_ns(KEEPER_MS));
    }
    pthread_mutex_unlock(&api->keeper_mutex);
}

/* The record by which other servers find this one, and what is measured. */
static void renew(kl__api *api)
{
    if (kl__forward_renew(api) != KL_OK)
        api->opts.log(api->opts.log_ctx, KL_LOG_WARN, kl_error_text());
    kl__audit_tick(api->audit);
    kl__metrics_refresh(api->metrics);
    kl__metrics_sample(api->metrics);
}

static void *keep_record(void *api)
{
    keep(api, renew);
    return NULL;
}

/* A thread of its own: shards are given back queue by queue, and a queue whose store hangs must not keep the record
 * from being renewed. The others would take this server for ended, and its tokens for stale. */
static void *keep_resting(void *api)
{
    keep(api, kl__queues_rest);
    return NULL;
}

static kl_rc start_keepers(kl__api *api)
{
    api->keeper_started = pthread_create(&api->keeper, NULL, keep_record, api) == 0;
    api->rester_started = api->keeper_started && pthread_create(&api->rester, NULL, keep_resting, api) == 0;
    return api->rester_started ? KL_OK : kl__fail(KL_ESYSTEM, "no thread could be started; see ulimit -u");
}

static void end_keepers(kl__api *api)
{
    pthread_mutex_lock(&api->keeper_mutex);
    api->keeper_ends = true;
    pthread_cond_broadcast(&api->keeper_wake);
    pthread_mutex_unlock(&api->keeper_mutex);
    if (api->keeper_started)
        pthread_join(api->keeper, NULL);
    if (api->rester_started)
        pthread_join(api->rester, NULL);
    api->keeper_started = api->rester_started = false;
}

/* ---- Open ---- */

static void log_nothing(void *ctx, kl_log_level level, const char *text) { (void)ctx, (void)level, (void)text; }

/* N3. */
static kl_rc check_listen(const kl__api_opts *opts)
{
    if (opts->listen_count == 0)
        return kl__fail(KL_EINVAL, "there is no address to listen on; say --listen 127.0.0.1:7420");
    for (size_t i = 0; i < opts->listen_count; i++)
        if (!strchr(opts->listen[i], ':'))
            return kl__fail(KL_EINVAL, "'%s' is no address to listen on; say --listen 127.0.0.1:7420", opts->listen[i]);
    for (size_t i = 0; i < opts->listen_count && !opts->tokens; i++)
        if (!kl__guard_loopback(opts->listen[i]))
            return kl__fail(KL_EINVAL,
                            "%s can be reached from other machines, and nobody is asked for a token; make one with "
                            "`keyline token add NAME --role admin` and name its file with --tokens, or listen on "
                            "127.0.0.1",
                            opts->listen[i]);
    return KL_OK;
}

/* Handed over when somebody asks for the metrics. */
static void refresh(void *context)
{
    kl__api *api = context;
    pthread_mutex_lock(&api->queues_mutex);
    for (size_t i = 0; i < KL_QUEUE_BUCKETS; i++)
        for (kl__open_queue *open = api->queues[i]; open; open = open->next)
            if (open->claims) {
                kl__claims_counts counts = kl__claims_counted(open->claims);
                kl__metrics_claims(open->metrics, &counts);
                kl__claims_blocked_keys(open->claims, kl__metrics_blocked, open->metrics);
                kl__metrics_blocked_told(open->metrics);
            }
    pthread_mutex_unlock(&api->queues_mutex);
}

/* The API's socket in the data directory; NULL: there is none, or its path is too long for one. */
static const char *socket_of(kl__api *api)
{
    char path[PATH_MAX];
    if (!api->opts.dir || !realpath(api->opts.dir, path))
        return NULL;
    size_t size = strlen(path) + sizeof "unix:/http";
    char *socket = size < SOCKET_PATH_MAX ? kl_arena_alloc(&api->arena, size) : NULL;
    if (socket)
        snprintf(socket, size, "unix:%s/http", path);
    else
        api->opts.log(api->opts.log_ctx, KL_LOG_WARN, "the path of the data directory is too long for a socket in it");
    return socket;
}

static kl_rc open_http(kl__api *api)
{
    const kl__api_opts *opts = &api->opts;
    const char **listen = kl_arena_alloc(&api->arena, (opts->listen_count + 1) * sizeof *listen);
    size_t count = opts->listen_count;
    if (!listen)
        return kl__fail_memory();
    memcpy(listen, opts->listen, count * sizeof *listen);
    listen[count] = socket_of(api);
    count += listen[count] != NULL;
    kl__http_opts http = {.listen = listen,
                          .listen_count = count,
                          .tls_cert = opts->tls_cert,
                          .tls_key = opts->tls_key,
                          .body_bytes_max = (size_t)opts->body_bytes_max,
                          .serve = kl__route_serve,
                          .admit = kl__route_admits,
                          .ctx = api,
                          .log = opts->log,
                          .log_ctx = opts->log_ctx};
    return kl__http_open(&http, &api->http);
}

const char *kl__api_url(const kl__api *api, bool elsewhere, char *buffer, size_t size)
{
    const char *scheme = api->opts.tls_cert ? "https" : "http", *at = NULL;
    size_t index = 0;
    for (; index < api->opts.listen_count && !at; index++)
        if (strncmp(api->opts.listen[index], "unix:", 5) != 0)
            at = api->opts.listen[index];
    if (!at)
        return NULL;
    int port = kl__http_port(api->http, index - 1);
    if (strncmp(at, "0.0.0.0:", 8) == 0 || strncmp(at, "[::]:", 5) == 0)
        snprintf(buffer, size, "%s://%s:%d", scheme, elsewhere ? api->host : *at == '[' ? "[::1]" : "127.0.0.1", port);
    else
        snprintf(buffer, size, "%s://%.*s:%d", scheme, (int)(strrchr(at, ':') - at), at, port);
    return buffer;
}

/* Where others reach this server: as was said, or the first address with the port that it got. */
static void tell_url(kl__api *api)
{
    char buffer[512];
    const char *url = api->opts.url ? api->opts.url : kl__api_url(api, true, buffer, sizeof buffer);
    kl__forward_reachable(api, url ? url : "");
    if (kl_store_info_of(api->store).can & KL_STORE_SHARED && !api->opts.dir)
        kl__api_log(api, KL_LOG_INFO,
                    "other servers on the same store reach this one at %s; --url says another address",
                    url ? url : "no address");
}

static bool copy_text(kl_arena *arena, const char **text)
{
    kl_bytes copy;
    bool ok = !*text || kl_arena_copy(arena, (kl_bytes){*text, strlen(*text) + 1}, &copy);
    if (*text && ok)
        *text = copy.data;
    return ok;
}

static bool copy_list(kl_arena *arena, const char *const **list, size_t count)
{
    const char **copy = kl_arena_alloc(arena, (count + 1) * sizeof *copy);
    bool ok = copy != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        copy[i] = (*list)[i];
        ok = copy_text(arena, &copy[i]);
    }
    if (ok)
        *list = copy;
    return ok;
}

static kl_rc copy_opts(kl__api *api)
{
    kl__api_opts *opts = &api->opts;
    const char **texts[] = {&opts->store_url, &opts->dir, &opts->tls_cert, &opts->tls_key,
                            &opts->tokens,    &opts->url, &opts->audit};
    bool ok = copy_list(&api->arena, &opts->listen, opts->listen_count) &&
              copy_list(&api->arena, &opts->hosts, opts->host_count);
    for (size_t i = 0; ok && i < sizeof texts / sizeof *texts; i++)
        ok = copy_text(&api->arena, texts[i]);
    return ok ? KL_OK : kl__fail_memory();
}

static kl_rc open_parts(kl__api *api)
{
    const kl__api_opts *opts = &api->opts;
    kl__metrics_opts metrics = {.version = KEYLINE_VERSION, .refresh = refresh, .ctx = api};
    api->guard = (kl__guard){opts->listen, opts->listen_count, opts->hosts, opts->host_count};
    kl_rc rc = check_listen(opts);
    if (rc == KL_OK)
        rc = kl__access_open(opts->tokens, &api->tokens);
    if (rc == KL_OK)
        rc = kl__metrics_open(&metrics, &api->metrics);
    if (rc == KL_OK)
        rc = kl__events_open(api->metrics, &api->events);
    if (rc == KL_OK)
        rc = kl__audit_open(opts->audit, &api->audit);
    if (rc == KL_OK)
        rc = kl__forward_open(api);
    if (rc == KL_OK)
        rc = kl__pool_open(opts->threads ? (size_t)opts->threads : POOL_THREADS, &api->pool);
    if (rc == KL_OK)
        rc = kl__pool_open(LONG_THREADS, &api->long_pool);
    if (rc == KL_OK)
        rc = kl__pool_open(FORWARD_THREADS, &api->forward_pool);
    if (rc == KL_OK)
        rc = kl__puts_open(&api->puts);
    if (rc == KL_OK)
        rc = kl__puts_open(&api->puts_apart);
    if (rc == KL_OK)
        rc = kl__server_open(api->store, kl__store_identity(api->store), &api->stores);
    if (rc == KL_OK)
        kl__server_on_left(api->stores, kl__api_store_left, api);
    if (rc == KL_OK && api->audit)
        kl__server_on_made(api->stores, kl__api_store_made, api);
    if (rc == KL_OK)
        rc = open_http(api);
    if (rc != KL_OK)
        return rc;
    tell_url(api);
    rc = kl__forward_renew(api);
    return rc == KL_OK ? start_keepers(api) : rc;
}

kl_rc kl__api_open(const kl__api_opts *opts, kl__api **ret_api)
{
    kl__api *api = kl__alloc_zeroed(1, sizeof *api);
    if (!api)
        return kl__fail_memory();
    api->opts = *opts;
    if (!api->opts.log)
        api->opts.log = log_nothing;
    api->store = opts->store;
    api->began_ms = kl__wall_ms();
    gethostname(api->host, sizeof api->host - 1);
    snprintf(api->worker_name, sizeof api->worker_name, "%s-%d (server)", api->host, (int)getpid());
    pthread_mutex_init(&api->queues_mutex, NULL);
    kl__cond_init(&api->queues_changed);
    pthread_mutex_init(&api->keeper_mutex, NULL);
    kl__cond_init(&api->keeper_wake);
    kl_rc rc = copy_opts(api);
    if (rc == KL_OK)
        rc = open_parts(api);
    if (rc == KL_OK)
        *ret_api = api;
    else
        kl__api_close(api);
    return rc;
}

int kl__api_port(const kl__api *api, size_t index) { return kl__http_port(api->http, index); }

kl_rc kl__api_reload(kl__api *api)
{
    char first[512];
    kl_rc codes[3] = {kl__access_reload(api->tokens), KL_OK, KL_OK};
    snprintf(first, sizeof first, "%s", kl_error_text());
    kl__api_store_recheck(api);
    kl__events_recheck(api->events);
    codes[1] = kl__audit_reopen(api->audit);
    if (codes[0] == KL_OK)
        snprintf(first, sizeof first, "%s", kl_error_text());
    codes[2] = kl__http_reload_tls(api->http);
    if (codes[0] == KL_OK && codes[1] == KL_OK && codes[2] == KL_OK)
        kl__api_log(api, KL_LOG_INFO, "tokens and certificate were read again, and the audit log opened anew");
    if (codes[0] == KL_OK && codes[1] == KL_OK)
        return codes[2];
    return kl__fail(codes[0] != KL_OK ? codes[0] : codes[1], "%s", first);
}

/* ---- Stop ---- */

/* Under the mutex, so that whoever asks for claims afterwards starts none. */
static void begin_stop(kl__api *api)
{
    pthread_mutex_lock(&api->queues_mutex);
    atomic_store(&api->stopping, true);
    pthread_mutex_unlock(&api->queues_mutex);
}

void kl__api_stop(kl__api *api, int64_t wait_ms)
{
    kl__api_log(api, KL_LOG_INFO, "a stop begins: no more tasks are given out, and claimed ones have %lld ms",
                (long long)wait_ms);
    begin_stop(api);
    kl__queues_drain(api, wait_ms,
                     END_MS); /* meanwhile the keeper keeps the server's record, by which others find it */
    api->stopped = true;
    end_keepers(api);
    kl__http_stop(api->http);
    kl__api_log(api, KL_LOG_INFO, "stopped: outcomes are settled, and the shards are given back");
}

void kl__api_hurry(kl__api *api) { atomic_store(&api->hurried, true); }

/* Nothing is served any more, and what was is answered. */
static void await_exchanges(kl__api *api)
{
    atomic_store(&api->closing, true);
    if (api->http)
        kl__http_stop(api->http);
    kl__events_stop(api->events);
    kl__queues_drain(api, 0, api->stopped ? 0 : END_MS); /* what a stop did not wait for is not waited for again */
    pthread_mutex_lock(&api->keeper_mutex);
    while (atomic_load(&api->exchanges) > 0)
        kl__cond_wait(&api->keeper_wake, &api->keeper_mutex, kl__deadline_ns(EXCHANGES_MS));
    pthread_mutex_unlock(&api->keeper_mutex);
}

void kl__api_close(kl__api *api)
{
    if (!api)
        return;
    begin_stop(api);
    end_keepers(api);
    await_exchanges(api);
    kl__pool_close(api->forward_pool);
    kl__pool_close(api->long_pool);
    kl__pool_close(api->pool);
    kl__puts_close(api->puts);
    kl__puts_close(api->puts_apart);
    kl__server_end(api->stores); /* before the connections go, so that no client is left in doubt */
    kl__http_close(api->http);
    kl__server_stop(api->stores);
    kl__queues_close(api);
    kl__forward_close(api);
    kl__events_close(api->events);
    kl__audit_close(api->audit);
    kl__metrics_close(api->metrics);
    kl__access_close(api->tokens);
    pthread_cond_destroy(&api->keeper_wake);
    pthread_mutex_destroy(&api->keeper_mutex);
    pthread_cond_destroy(&api->queues_changed);
    pthread_mutex_destroy(&api->queues_mutex);
    kl_arena_free(&api->arena);
    kl__free(api);
}
