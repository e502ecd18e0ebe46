/* serve.c - `keyline serve`: the HTTP API on a store, until a signal ends it.
 *
 *      SIGINT, SIGTERM     first: gives out no more tasks, lets claimed ones be finished (--server-stop), gives its shards back
 *                          second: releases what is still claimed, at no attempt, and ends
 *                          while the store is opened: ends at once
 *      SIGHUP              reads tokens and certificate again, and opens the audit log anew
 *
 * The end has a deadline: --server-stop for claimed tasks, then END_S for everything else. What a store that hangs has
 * not taken by then is run again by whoever gets the shards, as after a crash. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/opening.h"
#include "cli/serve_demo.h"
#include "net/log.h"
#include "net/notify.h"
#include "net/server.h"

typedef struct serve_opts {
    int64_t demo;
} serve_opts;

/* END_S: for outcomes that wait for the store, shards to be given back, and answers to be sent. */
enum { LIST_MAX = 32, END_S = 15 };

static kl__log log_to; /* the store's, too, which is closed after everything here */

/* "a,b,c" into its parts, in the arena. False: it has complained. */
static bool split_list(kl__call *call, const char *what, const char *text, const char **parts, size_t *ret_count)
{
    kl_bytes copy;
    char *save = NULL;
    *ret_count = 0;
    if (!kl_arena_copy(&call->arena, kl_str(text), &copy))
        return kl__fail_call(kl__fail_memory()) == KL_EXIT_OK;
    for (char *part = strtok_r((char *)copy.data, ", ", &save); part; part = strtok_r(NULL, ", ", &save)) {
        if (*ret_count == LIST_MAX) {
            kl__complain("%s has more than %d parts; give it fewer", what, LIST_MAX);
            return false;
        }
        parts[(*ret_count)++] = part;
    }
    return true;
}

static const char *text_or_null(const kl__call *call, kl__setting_id id)
{
    const char *text = call->config->values[id].text;
    return *text ? text : NULL;
}

/* Where the socket of the API goes: into the data directory, where the store has one. */
static const char *directory_of(const char *url)
{
    if (strncmp(url, "disk:", 5) != 0)
        return NULL;
    return url[5] ? url + 5 : "./keyline-data";
}

static bool fill(kl__call *call, const char **listen, const char **hosts, kl__api_opts *ret_opts)
{
    const kl__value *values = call->config->values;
    *ret_opts = (kl__api_opts){
        .store = call->store,
        .store_url = values[KL_SET_STORE].text,
        .dir = directory_of(values[KL_SET_STORE].text),
        .listen = listen,
        .hosts = hosts,
        .tls_cert = text_or_null(call, KL_SET_SERVER_TLS_CERT),
        .tls_key = text_or_null(call, KL_SET_SERVER_TLS_KEY),
        .tokens = text_or_null(call, KL_SET_SERVER_TOKENS),
        .url = text_or_null(call, KL_SET_SERVER_URL),
        .audit = text_or_null(call, KL_SET_SERVER_AUDIT),
        .body_bytes_max = values[KL_SET_SERVER_BODY_MAX].number,
        .log_json = values[KL_SET_SERVER_LOG_FORMAT].number == 2,
    };
    if (!ret_opts->tls_cert != !ret_opts->tls_key) {
        kl__complain("TLS takes both --tls-cert and --tls-key; give the other one too");
        return false;
    }
    return split_list(call, "--listen", values[KL_SET_SERVER_LISTEN].text, listen, &ret_opts->listen_count) &&
           split_list(call, "--hosts", values[KL_SET_SERVER_HOSTS].text, hosts, &ret_opts->host_count);
}

/* ---- What people see ---- */

/* A URL may hold a password. */
static const char *shown_store(const char *url, char *buffer, size_t size)
{
    if (strncmp(url, "disk:", 5) == 0 || strncmp(url, "memory:", 7) == 0)
        return url;
    snprintf(buffer, size, "a store of %.*s", (int)strcspn(url, ":"), url);
    return buffer;
}

/* With --log-format json every line is JSON. */
static void tell_in_json(const char *format, ...) KL_PRINTF(1, 2);
static void tell_in_json(const char *format, ...)
{
    char text[512];
    kl__log always = {.most = KL_LOG_DEBUG, .json = true, .fd = STDOUT_FILENO};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    kl__log_line(&always, KL_LOG_INFO, text);
}

static void tell_address(const kl__api *api, const kl__api_opts *opts, bool demo)
{
    char buffer[300], store[64];
    const char *url = kl__api_url(api, false, buffer, sizeof buffer);
    if (log_to.json) {
        tell_in_json("keyline serves %s at %s", shown_store(opts->store_url, store, sizeof store),
                     url ? url : opts->listen[0]);
        return;
    }
    if (!url) { /* sockets alone, for which there is no URL */
        printf("keyline serves %s at %s; Ctrl-C ends it\n", shown_store(opts->store_url, store, sizeof store),
               opts->listen[0]);
        fflush(stdout);
        return;
    }
    printf("keyline serves %s at %s; Ctrl-C ends it\n\n"
           "Try, in another terminal:\n"
           "  curl --json '{\"key\": \"customer-7\", \"payload\": \"charge 12.00\"}' %s/v1/queues/orders/tasks\n"
           "  curl --json '{\"max\": 1, \"wait_ms\": 1000}' %s/v1/queues/orders/claim\n"
           "  %s top --store %s\n%s",
           shown_store(opts->store_url, store, sizeof store), url, url, url, program_invocation_name, url,
           demo ? "\nThe queue demo has a small load; --no-demo leaves it out.\n" : "");
    fflush(stdout);
}

/* ---- Signals ---- */

static void block_signals(sigset_t *ret_signals)
{
    sigemptyset(ret_signals);
    sigaddset(ret_signals, SIGINT);
    sigaddset(ret_signals, SIGTERM);
    sigaddset(ret_signals, SIGHUP);
    sigaddset(ret_signals, SIGUSR1); /* wakes the main thread when the stop is over */
    pthread_sigmask(SIG_BLOCK, ret_signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_DFL); /* a shell may have it ignored for what runs in the background */
}

/* Until somebody ends it. */
static int await_end(kl__api *api, const sigset_t *signals)
{
    int64_t watchdog_ms = kl__notify_watchdog_ms();
    struct timespec patience = {.tv_sec = watchdog_ms / 1000, .tv_nsec = watchdog_ms % 1000 * 1000000};
    for (;;) {
        int number = watchdog_ms ? sigtimedwait(signals, NULL, &patience) : sigwaitinfo(signals, NULL);
        if (number < 0) {
            kl__notify("WATCHDOG=1");
            continue;
        }
        if (number != SIGHUP && number != SIGUSR1)
            return number;
        if (number == SIGUSR1)
            continue;
        kl__notify("RELOADING=1");
        if (kl__api_reload(api) != KL_OK)
            kl__log_line(&log_to, KL_LOG_ERROR, kl_error_text()); /* what was there stays */
        kl__notify("READY=1");
    }
}

struct stopping {
    kl__api *api;
    kl__serve_demo *demo; /* NULL: none */
    int64_t wait_ms;
    pthread_t main_thread;
    atomic_bool over;
};

static void *stop(void *context)
{
    struct stopping *stopping = context;
    kl__api_stop(stopping->api, stopping->wait_ms);
    kl__serve_demo_stop(stopping->demo);
    atomic_store(&stopping->over, true);
    pthread_kill(stopping->main_thread, SIGUSR1);
    return NULL;
}

static void end_late(int number)
{
    static const char text[] = "the store did not take everything in time; what was not settled is run again",
                      before[] = "{\"level\":\"error\",\"text\":\"", after[] = "\"}\n";
    (void)number;
    ssize_t written = log_to.json ? write(STDERR_FILENO, before, sizeof before - 1) : 0;
    written += write(STDERR_FILENO, text, sizeof text - 1);
    written += log_to.json ? write(STDERR_FILENO, after, sizeof after - 1) : write(STDERR_FILENO, "\n", 1);
    (void)written; /* there is nobody left to tell */
    _exit(KL_EXIT_AGAIN);
}

/* From now on the process has so long to end. */
static void set_deadline(int64_t wait_ms)
{
    signal(SIGALRM, end_late);
    alarm((unsigned)(wait_ms / 1000 + END_S));
}

/* Stops within the time; a second signal ends the wait. */
static void stop_api(kl__api *api, kl__serve_demo *demo, int64_t wait_ms, const sigset_t *signals)
{
    struct stopping stopping = {.api = api, .demo = demo, .wait_ms = wait_ms, .main_thread = pthread_self()};
    pthread_t thread;
    int number;
    kl__notify("STOPPING=1");
    set_deadline(wait_ms);
    if (pthread_create(&thread, NULL, stop, &stopping) != 0) {
        kl__api_stop(api, 0);
        kl__serve_demo_stop(demo);
        return;
    }
    while (sigwait(signals, &number) == 0 && !atomic_load(&stopping.over))
        if (number == SIGINT || number == SIGTERM) {
            kl__api_hurry(api);
            set_deadline(0);
        }
    pthread_join(thread, NULL);
}

static int serve(kl__call *call, const sigset_t *signals)
{
    const serve_opts *opts = call->values;
    const char *listen[LIST_MAX], *hosts[LIST_MAX];
    kl__api_opts api_opts;
    kl__api *api;
    kl__serve_demo *demo = NULL;
    if (!fill(call, listen, hosts, &api_opts))
        return KL_EXIT_USAGE;
    api_opts.log = kl__log_line;
    api_opts.log_ctx = &log_to;
    kl_rc rc = kl__api_open(&api_opts, &api);
    if (rc != KL_OK)
        return kl__fail_given(rc);
    if (opts->demo > 0)
        rc = kl__serve_demo_start(call->store, &demo);
    if (rc == KL_OK) {
        tell_address(api, &api_opts, opts->demo > 0);
        kl__notify("READY=1");
        await_end(api, signals);
        stop_api(api, demo, call->config->values[KL_SET_SERVER_STOP].number, signals);
    }
    kl__api_close(api);
    if (rc != KL_OK)
        return kl__fail_call(rc);
    if (log_to.json)
        tell_in_json("keyline has stopped; nothing that was acknowledged is lost");
    else
        puts("keyline has stopped; nothing that was acknowledged is lost");
    return KL_EXIT_OK;
}

static int open_store(kl__call *call)
{
    const kl__value *values = call->config->values;
    log_to = (kl__log){.most = (kl_log_level)(values[KL_SET_LOG].number - 1),
                       .json = values[KL_SET_SERVER_LOG_FORMAT].number == 2,
                       .fd = STDERR_FILENO};
    if (log_to.json)
        kl__complain_in_json(true);
    kl_store_opts opts = {.size = sizeof opts, .log = kl__log_line, .log_ctx = &log_to};
    return kl__fail_given(kl_store_open(values[KL_SET_STORE].text, &opts, &call->store));
}

static int run_serve(kl__call *call)
{
    sigset_t signals, ending;
    kl__opening opening;
    block_signals(&signals);
    sigemptyset(&ending);
    sigaddset(&ending, SIGINT);
    sigaddset(&ending, SIGTERM);
    kl__opening_begin(&opening, &ending);
    int status = open_store(call);
    kl__opening_end(&opening);
    return status == KL_EXIT_OK ? serve(call, &signals) : status;
}

/* ---- Tables ---- */

static const kl__option options[] = {
    {"--[no-]demo", NULL, "put and run some tasks of a queue called demo, to have something to look at",
     offsetof(serve_opts, demo), 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

const kl__command kl__serve_command = {
    .name = "serve",
    .summary = "offer a store to other machines and languages, over HTTP",
    .about = "Serves the HTTP API (docs/http.md, and /openapi.json of the server itself) on the store.\n"
             "\n"
             "  keyline serve\n"
             "  keyline serve --store postgres://db/shop --listen 0.0.0.0:7420 --tokens tokens\n"
             "\n"
             "Clients put tasks, claim them under leases and finish them with the claim's token. All other\n"
             "commands work on a server as on a store: keyline ls orders --store http://127.0.0.1:7420,\n"
             "with KEYLINE_TOKEN where it asks for one.\n"
             "\n"
             "Without --tokens, only this machine's addresses may be listened on, and everybody on it may do\n"
             "everything. `keyline token add` makes tokens.\n"
             "\n"
             "The first SIGINT or SIGTERM lets claimed tasks be finished for up to --server-stop, gives the shards\n"
             "back and exits with 0; the second one does not wait. What is not finished then costs no attempt.\n"
             "SIGHUP reads tokens and certificate again.\n",
    .options = options,
    .values_size = sizeof(serve_opts),
    .takes = KL_TAKES_STORE | KL_TAKES_SERVE,
    .run = run_serve,
};
