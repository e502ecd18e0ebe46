/* http.c - HTTP from open to close: options, listeners, loops, TLS, counts.
 *
 * From: the server.  To: http_listen.c, http_loop.c.
 *
 * kl__http_close frees what open made in the other order; it is also how a failed open cleans up, so each part bears
 * being freed when it was never made. */
#include "net/http.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>

#include "base/wait.h"
#include "net/http_inside.h"

enum {
    DEFAULT_HEAD_BYTES = 16 << 10,
    DEFAULT_BODY_BYTES = 64 << 20,
    DEFAULT_BODIES_BYTES = 512 << 20,
    DEFAULT_CONNECTIONS = 10000,
    DEFAULT_HEAD_MS = 10000,
    DEFAULT_BODY_MS = 60000,
    DEFAULT_IDLE_MS = 75000,
    DEFAULT_SEND_MS = 60000,
    OTHER_DESCRIPTORS = 512, /* of the process, beside connections: a store's files, listeners, clients of its own */
    LOG_BYTES = 512,
};

void kl__http_log(const kl__http *http, kl_log_level level, const char *format, ...)
{
    char text[LOG_BYTES];
    if (!http->opts.log)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    http->opts.log(http->opts.log_ctx, level, text);
}

bool kl__http_thread(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}

/* ---- Open ---- */

static void set_size(size_t *io_value, size_t otherwise) { *io_value = *io_value ? *io_value : otherwise; }
static void set_ms(int64_t *io_value, int64_t otherwise) { *io_value = *io_value > 0 ? *io_value : otherwise; }

static void fill_in(kl__http_opts *opts)
{
    set_size(&opts->head_bytes_max, DEFAULT_HEAD_BYTES);
    set_size(&opts->body_bytes_max, DEFAULT_BODY_BYTES);
    set_size(&opts->bodies_bytes_max,
             opts->body_bytes_max > DEFAULT_BODIES_BYTES / 2 ? opts->body_bytes_max * 2 : DEFAULT_BODIES_BYTES);
    set_size(&opts->connections_max, DEFAULT_CONNECTIONS);
    set_ms(&opts->head_ms, DEFAULT_HEAD_MS);
    set_ms(&opts->body_ms, DEFAULT_BODY_MS);
    set_ms(&opts->idle_ms, DEFAULT_IDLE_MS);
    set_ms(&opts->send_ms, DEFAULT_SEND_MS);
    set_ms(&opts->loops, 1);
    if (opts->loops > KL_HTTP_LOOPS_MAX)
        opts->loops = KL_HTTP_LOOPS_MAX;
}

static kl_rc check(const kl__http_opts *opts)
{
    if (!opts->serve)
        return kl__fail(KL_EINVAL, "there is no function that serves requests");
    if (opts->listen_count == 0 || opts->listen_count > KL_HTTP_LISTEN_MAX)
        return kl__fail(KL_EINVAL, "%zu addresses to listen on; name 1 to %d", opts->listen_count, KL_HTTP_LISTEN_MAX);
    if (!opts->tls_cert != !opts->tls_key)
        return kl__fail(KL_EINVAL, "TLS needs both a certificate and a key; only the %s is named",
                        opts->tls_cert ? "certificate" : "key");
    return KL_OK;
}

static void raise_descriptors(const kl__http *http)
{
    struct rlimit limit;
    rlim_t wanted = (rlim_t)http->opts.connections_max + OTHER_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted)
        kl__http_log(http, KL_LOG_WARN,
                     "only %llu files may be open at once, which is too few for %zu connections; raise the limit "
                     "(LimitNOFILE=, ulimit -n)",
                     (unsigned long long)limit.rlim_cur, http->opts.connections_max);
}

static kl_rc copy_name(const char *name, char **ret_copy)
{
    char *copy = kl__alloc(strlen(name) + 1);
    if (!copy)
        return kl__fail_memory();
    memcpy(copy, name, strlen(name) + 1);
    *ret_copy = copy;
    return KL_OK;
}

static kl_rc open_tls(kl__http *http, const kl__http_opts *opts)
{
    if (!opts->tls_cert)
        return KL_OK;
    kl_rc rc = copy_name(opts->tls_cert, &http->tls_cert);
    if (rc == KL_OK)
        rc = copy_name(opts->tls_key, &http->tls_key);
    return rc == KL_OK ? kl__tls_context_open(http->tls_cert, http->tls_key, &http->tls) : rc;
}

static kl_rc open_loops(kl__http *http)
{
    int count = (int)http->opts.loops;
    http->loops = kl__alloc_aligned(alignof(kl__loop), (size_t)count, sizeof *http->loops);
    if (!http->loops)
        return kl__fail_memory();
    http->loop_count = count;
    for (int i = 0; i < count; i++) {
        kl_rc rc = kl__loop_init(&http->loops[i], http, i);
        if (rc != KL_OK)
            return rc;
    }
    return KL_OK;
}

static kl_rc open_all(kl__http *http, const kl__http_opts *opts)
{
    kl_rc rc = open_tls(http, opts);
    for (size_t i = 0; rc == KL_OK && i < opts->listen_count; i++) {
        rc = kl__listener_open(opts->listen[i], &http->listeners[i]);
        http->listener_count += rc == KL_OK;
    }
    if (rc == KL_OK)
        rc = open_loops(http);
    for (int i = 0; rc == KL_OK && i < http->loop_count; i++)
        rc = kl__loop_start(&http->loops[i]);
    return rc;
}

kl_rc kl__http_open(const kl__http_opts *opts, kl__http **ret_http)
{
    kl_rc rc = check(opts);
    if (rc != KL_OK)
        return rc;
    kl__http *http = kl__alloc_zeroed(1, sizeof *http);
    if (!http)
        return kl__fail_memory();
    http->opts = *opts;
    fill_in(&http->opts);
    pthread_mutex_init(&http->tls_mutex, NULL);
    pthread_mutex_init(&http->carriers_mutex, NULL);
    kl__cond_init(&http->carriers_changed);
    raise_descriptors(http);
    rc = open_all(http, opts);
    if (rc == KL_OK)
        *ret_http = http;
    else
        kl__http_close(http);
    return rc;
}

/* ---- While it is open ---- */

int kl__http_port(const kl__http *http, size_t index)
{
    return index < http->listener_count ? http->listeners[index].port : 0;
}

kl_rc kl__http_reload_tls(kl__http *http)
{
    if (!http->tls_cert)
        return KL_OK;
    kl__tls_context *fresh;
    kl_rc rc = kl__tls_context_open(http->tls_cert, http->tls_key, &fresh);
    if (rc != KL_OK)
        return rc;
    pthread_mutex_lock(&http->tls_mutex);
    kl__tls_context *before = http->tls;
    http->tls = fresh;
    pthread_mutex_unlock(&http->tls_mutex);
    kl__tls_context_close(before);
    return KL_OK;
}

kl__http_counts kl__http_counted(const kl__http *http)
{
    kl__http_counts counts = {.connections = (uint64_t)atomic_load(&http->connection_count)};
    for (int i = 0; i < http->loop_count; i++) {
        kl__loop *loop = &http->loops[i];
        counts.requests += atomic_load_explicit(&loop->requests, memory_order_relaxed);
        counts.refused += atomic_load_explicit(&loop->refused, memory_order_relaxed);
        counts.bytes_in += atomic_load_explicit(&loop->bytes_in, memory_order_relaxed);
        counts.bytes_out += atomic_load_explicit(&loop->bytes_out, memory_order_relaxed);
    }
    return counts;
}

/* ---- Close ---- */

void kl__http_stop(kl__http *http)
{
    atomic_store(&http->stopping, true);
    for (int i = 0; i < http->loop_count; i++)
        kl__loop_wake(&http->loops[i]);
}

void kl__http_close(kl__http *http)
{
    if (!http)
        return;
    atomic_store(&http->closing, true);
    for (int i = 0; i < http->loop_count; i++)
        kl__loop_free(&http->loops[i]);
    kl__carriers_close(http);
    for (size_t i = 0; i < http->listener_count; i++)
        kl__listener_close(&http->listeners[i]);
    kl__free(http->loops);
    kl__tls_context_close(http->tls);
    kl__free(http->tls_cert);
    kl__free(http->tls_key);
    pthread_cond_destroy(&http->carriers_changed);
    pthread_mutex_destroy(&http->carriers_mutex);
    pthread_mutex_destroy(&http->tls_mutex);
    kl__free(http);
}
