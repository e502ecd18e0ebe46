/* work_run.c - one attempt of one task as a process: what it is told, and what is made of its end.
 *
 *      payload       standard input            exit status 0     done
 *      its facts     KEYLINE_... variables                 65    dead
 *      result        standard output                       75    retry, and so does every other
 *      error         the end of standard error
 *      progress      lines `PERCENT TEXT` on descriptor 3 */
#include <ctype.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "cli/config.h"
#include "cli/output.h"
#include "cli/process.h"
#include "cli/work.h"

enum {
    FACTS_MAX = 12,
    LINE_ERROR_COLUMNS = 120,
    START_PAUSE_MS = 1000,
    START_TOLD = 60, /* every so many tries to have a process */
    TICK_MS = 50
};

static const char header_prefix[] = "KEYLINE_HEADER_";

/* ---- The environment ---- */

/* Names of what a handler is told; ends with NULL. settings.c exempts them, and so a handler may call `keyline`. */
static const char *const told[] = {
    "KEYLINE_TASK_ID",  "KEYLINE_QUEUE",       "KEYLINE_KEY",    "KEYLINE_KIND",  "KEYLINE_ATTEMPT",
    "KEYLINE_PRIORITY", "KEYLINE_PARTITION",   "KEYLINE_LAYOUT", "KEYLINE_GROUP", "KEYLINE_JOB",
    "KEYLINE_HEADER_",  "KEYLINE_TRACEPARENT", "TRACEPARENT",    "KEYLINE_STORE", NULL};

static bool is_told(const char *variable)
{
    size_t length = strcspn(variable, "=");
    if (strncmp(variable, header_prefix, sizeof header_prefix - 1) == 0)
        return true;
    for (const char *const *name = told; *name; name++)
        if (strlen(*name) == length && strncmp(*name, variable, length) == 0)
            return true;
    return false;
}

/* For handlers, which may go to another directory; NULL: out of memory. */
static const char *absolute_store(kl__call *call)
{
    static const char disk[] = "disk:";
    const char *url = call->config->values[KL_SET_STORE].text, *path = url + strlen(disk);
    if (strncmp(url, disk, strlen(disk)) != 0 || *path == '/')
        return kl__format(&call->arena, "KEYLINE_STORE=%s", url);
    char *here = getcwd(NULL, 0);
    const char *store = here ? kl__format(&call->arena, "KEYLINE_STORE=disk:%s/%s", here, *path ? path : "keyline-data")
                             : kl__format(&call->arena, "KEYLINE_STORE=%s", url);
    free(here);
    return store;
}

bool kl__crew_prepare(kl__crew *crew, kl__call *call)
{
    size_t count = 0;
    while (environ[count])
        count++;
    char **copy = kl_arena_alloc(&call->arena, (count + 2) * sizeof *copy);
    const char *store = absolute_store(call);
    if (!copy || !store)
        return kl__fail_call(kl__fail_memory()) == KL_EXIT_OK;
    crew->environment_count = 0;
    for (size_t i = 0; i < count; i++)
        if (!is_told(environ[i]))
            copy[crew->environment_count++] = environ[i];
    copy[crew->environment_count++] = (char *)store;
    copy[crew->environment_count] = NULL;
    crew->environment = copy;
    crew->call = call;
    return true;
}

struct facts {
    char **variables;
    size_t count;
    kl_arena *arena;
    bool failed;
};

static void KL_PRINTF(2, 3) add(struct facts *facts, const char *format, ...)
{
    va_list arguments;
    char *text = NULL;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    kl_bytes copy = {0};
    if (length < 0 || !kl_arena_copy(facts->arena, kl_str(text), &copy))
        facts->failed = true;
    else
        facts->variables[facts->count++] = (char *)copy.data;
    if (length >= 0)
        free(text);
}

/* A zero byte would end it, and then it would look like another one. */
static bool can_be_told(kl_bytes bytes) { return !bytes.len || !memchr(bytes.data, 0, bytes.len); }

/* Without bytes, the variable is not set. */
static void add_bytes(struct facts *facts, const char *name, kl_bytes bytes)
{
    if (bytes.len && can_be_told(bytes))
        add(facts, "%s=%.*s", name, (int)bytes.len, (const char *)bytes.data);
}

/* Whether the last variable is one that was there before. */
static bool is_repeat(const struct facts *facts, size_t from)
{
    const char *last = facts->variables[facts->count - 1];
    size_t length = strcspn(last, "=") + 1;
    for (size_t i = from; i < facts->count - 1; i++)
        if (strncmp(facts->variables[i], last, length) == 0)
            return true;
    return false;
}

/* Of names that become one, the first counts: what a program makes of two variables of one name is its own affair. */
static void add_header(struct facts *facts, const kl_header *header, size_t from)
{
    char name[256];
    if (!can_be_told(header->value))
        return;
    size_t length = header->name.len < sizeof name - 1 ? header->name.len : sizeof name - 1;
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = ((const unsigned char *)header->name.data)[i];
        name[i] = (char)(byte < 128 && isalnum(byte) ? toupper(byte) : '_');
    }
    name[length] = '\0';
    size_t count = facts->count;
    add(facts, "%s%s=%.*s", header_prefix, name, (int)header->value.len,
        header->value.len ? (const char *)header->value.data : "");
    if (facts->count > count && is_repeat(facts, from))
        facts->count = count;
}

static void add_facts(struct facts *facts, const kl_work *work)
{
    static const kl_task_id none;
    const kl_entry *entry = &kl_work_task(work)->entry;
    const kl_task_extra *extra = kl_work_extra(work);
    char id[KL_ID_TEXT_BYTES];
    kl_id_print(&entry->id, id);
    add(facts, "KEYLINE_TASK_ID=%s", id);
    add(facts, "KEYLINE_QUEUE=%s", kl_work_queue(work));
    add(facts, "KEYLINE_ATTEMPT=%" PRIu32, kl_work_attempt(work));
    add(facts, "KEYLINE_PRIORITY=%" PRId32, entry->priority);
    add(facts, "KEYLINE_PARTITION=%s", kl_work_partition(work));
    add(facts, "KEYLINE_LAYOUT=%" PRIu64, kl_work_layout(work));
    add_bytes(facts, "KEYLINE_KEY", entry->key);
    add_bytes(facts, "KEYLINE_KIND", entry->kind);
    add_bytes(facts, "KEYLINE_GROUP", extra->group);
    add_bytes(facts, "KEYLINE_TRACEPARENT", extra->traceparent);
    add_bytes(facts, "TRACEPARENT", extra->traceparent);
    if (memcmp(&entry->job, &none, sizeof none) != 0) {
        kl_id_print(&entry->job, id);
        add(facts, "KEYLINE_JOB=%s", id);
    }
    size_t from = facts->count;
    for (size_t i = 0; i < extra->header_count; i++)
        add_header(facts, &extra->headers[i], from);
}

/* NULL: out of memory. */
static char **environment_of(const kl__crew *crew, const kl_work *work, kl_arena *arena)
{
    size_t most = crew->environment_count + FACTS_MAX + kl_work_extra(work)->header_count + 1;
    struct facts facts = {.variables = kl_arena_alloc(arena, most * sizeof *facts.variables), .arena = arena};
    if (!facts.variables)
        return NULL;
    memcpy(facts.variables, crew->environment, crew->environment_count * sizeof *facts.variables);
    facts.count = crew->environment_count;
    add_facts(&facts, work);
    KL_ASSERT(facts.count < most);
    facts.variables[facts.count] = NULL;
    return facts.failed ? NULL : facts.variables;
}

/* ---- Progress ---- */

static bool is_unwanted(void *ctx) { return kl_work_cancelled(ctx); }

/* `40` or `40 half of it`; what is no number is a text alone. */
static void take_progress(void *ctx, const char *line)
{
    char *rest;
    long percent = strtol(line, &rest, 10);
    bool has_number = rest != line && (!*rest || *rest == ' ' || *rest == '%');
    if (has_number)
        rest += strspn(rest, "% ");
    kl_work_progress(ctx,
                     has_number ? (int)(percent < 0     ? 0
                                        : percent > 100 ? 100
                                                        : percent)
                                : -1,
                     has_number ? rest : line);
}

/* ---- The outcome ---- */

static kl_outcome outcome_of(int status)
{
    if (!WIFEXITED(status))
        return KL_RETRY;
    switch (WEXITSTATUS(status)) {
    case KL_HANDLER_DONE:
        return KL_DONE;
    case KL_HANDLER_DEAD:
        return KL_DEAD;
    default:
        return KL_RETRY;
    }
}

/* What went wrong; "" when what it said itself is enough. */
static void print_reason(const kl_work *work, const kl__ended *ended, char *text, size_t size)
{
    int status = ended->status;
    *text = '\0';
    if (ended->was_ended && kl_work_timeout_ms(work) == 0)
        snprintf(text, size, "it ran out of time and was ended");
    else if (ended->was_ended)
        snprintf(text, size, "it was ended on request");
    else if (WIFSIGNALED(status))
        snprintf(text, size, "it was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (ended->tail_len == 0)
        snprintf(text, size, "it ended with exit status %d and said nothing", WEXITSTATUS(status));
}

static void give_error(kl_work *work, kl__ended *ended)
{
    char reason[160];
    char *tail = ended->tail;
    while (ended->tail_len && isspace((unsigned char)tail[ended->tail_len - 1]))
        ended->tail_len--;
    tail[ended->tail_len] = '\0';
    for (size_t i = 0; i < ended->tail_len; i++)
        if (!tail[i])
            tail[i] = ' ';
    print_reason(work, ended, reason, sizeof reason);
    size_t room = KL_ERROR_BYTES_MAX - strlen(reason) - 2, from = ended->tail_len > room ? ended->tail_len - room : 0;
    while (from && ((unsigned char)tail[from] & 0xc0) == 0x80)
        from++;
    kl_work_error(work, "%s%s%s", reason, *reason && ended->tail_len ? ": " : "", tail + from);
}

/* The error of a task that is dead is not replaced by what became of its result. */
static void give_result(kl_work *work, kl_outcome outcome, const kl__ended *ended)
{
    if (ended->out_len && kl_work_result(work, (kl_bytes){ended->out, ended->out_len}) != KL_OK)
        kl_work_error(work, "its result could not be kept: %s", kl_error_text());
    else if (ended->out_cut && outcome == KL_DONE)
        kl_work_error(work, "its result is cut: a result has up to %d bytes", KL_RESULT_BYTES_MAX);
}

/* ---- Telling ---- */

static size_t queue_of(const kl__crew *crew, const kl_work *work)
{
    size_t i = 0;
    while (i + 1 < crew->queue_count && strcmp(crew->queues[i], kl_work_queue(work)) != 0)
        i++;
    return i;
}

/* Whether this was the last attempt. */
static bool is_last(const kl__crew *crew, const kl_work *work)
{
    int64_t most = kl_work_extra(work)->attempts_max;
    most = most ? most : crew->attempts[queue_of(crew, work)];
    return most && (int64_t)kl_work_attempt(work) >= most;
}

/* Cancelled, given up, or another worker's now. */
static bool was_stopped(const kl_work *work, const kl__ended *ended)
{
    return ended->was_ended && kl_work_timeout_ms(work) > 0;
}

static const char *outcome_name(const kl__crew *crew, const kl_work *work, kl_outcome outcome, const kl__ended *ended)
{
    if (outcome == KL_DONE)
        return "done";
    if (was_stopped(work, ended))
        return "ended";
    if (outcome != KL_DEAD && !is_last(crew, work))
        return "retry";
    bool halts = crew->policies[queue_of(crew, work)] == KL_HEAD_HALT && kl_work_key(work).len > 0;
    return halts ? "halted" : "dead";
}

static void tell_json(const kl__crew *crew, const kl_work *work, kl_outcome outcome, const kl__ended *ended,
                      int64_t took_ms)
{
    char reason[160];
    print_reason(work, ended, reason, sizeof reason);
    static const kl__column columns[] = {{"id", 0},      {"queue", 0},   {"key", 0},  {"kind", 0},  {"attempt", 0},
                                         {"outcome", 0}, {"took_ms", 0}, {"exit", 0}, {"error", 0}, {NULL, 0}};
    kl_task_id id = kl_work_id(work);
    bool exited = WIFEXITED(ended->status);
    (void)kl__out_thing(
        crew->call, columns,
        (kl__cell[]){kl__cell_id(&id), kl__cell_text(kl_work_queue(work)), kl__cell_bytes_or_none(kl_work_key(work)),
                     kl__cell_bytes_or_none(kl_work_kind(work)), kl__cell_number(kl_work_attempt(work)),
                     kl__cell_text(outcome_name(crew, work, outcome, ended)), kl__cell_duration(took_ms),
                     exited ? kl__cell_number(WEXITSTATUS(ended->status)) : kl__cell_none(),
                     outcome == KL_DONE ? kl__cell_none() : kl__cell_text(ended->tail_len ? ended->tail : reason)});
    fflush(stdout);
}

/* The last line of what it said is the one that tells most. */
static kl_bytes last_line(const kl__ended *ended)
{
    const char *newline = memrchr(ended->tail, '\n', ended->tail_len);
    const char *from = newline ? newline + 1 : ended->tail;
    size_t length = ended->tail_len - (size_t)(from - ended->tail);
    return (kl_bytes){from, length < LINE_ERROR_COLUMNS ? length : LINE_ERROR_COLUMNS};
}

static void tell_people(kl__crew *crew, const kl_work *work, kl_outcome outcome, const kl__ended *ended,
                        int64_t took_ms, kl_arena *arena)
{
    char id[KL_ID_TEXT_BYTES], reason[160] = "";
    kl_task_id number = kl_work_id(work);
    const char *key = kl__out_harmless(kl_work_key(work), arena);
    const char *said = outcome == KL_DONE ? "" : kl__out_harmless(last_line(ended), arena);
    kl_id_print(&number, id);
    if (outcome != KL_DONE)
        print_reason(work, ended, reason, sizeof reason);
    fprintf(stderr, "%s%-5s %s %s%s%s, attempt %" PRIu32 ", %" PRId64 " ms%s%s%s%s%s\n", crew->drawn ? "\r\33[K" : "",
            outcome_name(crew, work, outcome, ended), kl_work_queue(work), id, key && *key ? " key " : "",
            key ? key : "", kl_work_attempt(work), took_ms, *reason ? ": " : "", reason, said && *said ? ": " : "",
            said ? said : "", ended->out_cut && outcome != KL_RETRY ? "; its result is cut" : "");
    crew->drawn = false;
}

static void tell(kl__crew *crew, const kl_work *work, kl_outcome outcome, const kl__ended *ended, int64_t took_ms,
                 kl_arena *arena)
{
    bool json = kl__call_json(crew->call);
    if (!crew->verbose && (json || outcome == KL_DONE))
        return;
    pthread_mutex_lock(&crew->mutex);
    if (json)
        tell_json(crew, work, outcome, ended, took_ms);
    else
        tell_people(crew, work, outcome, ended, took_ms, arena);
    pthread_mutex_unlock(&crew->mutex);
}

/* ---- All of it ---- */

static kl_outcome conclude(kl__crew *crew, kl_work *work, kl__ended *ended, int64_t took_ms, kl_arena *arena)
{
    kl_outcome outcome = outcome_of(ended->status);
    if (outcome != KL_DONE)
        give_error(work, ended);
    if (outcome != KL_RETRY)
        give_result(work, outcome, ended);
    if (outcome == KL_DONE && atomic_load(&crew->closing))
        atomic_fetch_add(&crew->done_late, 1);
    if (outcome != KL_DONE && was_stopped(work, ended) && atomic_load(&crew->stopping) && !atomic_load(&crew->closing))
        atomic_fetch_add(&crew->given_up, 1);
    tell(crew, work, outcome, ended, took_ms, arena);
    return outcome;
}

static void tell_failed(kl__crew *crew, const kl_work *work)
{
    char id[KL_ID_TEXT_BYTES], text[512];
    kl_task_id number = kl_work_id(work);
    kl_id_print(&number, id);
    snprintf(text, sizeof text, "the handler of %s %s could not be started: %s", kl_work_queue(work), id,
             kl_error_text());
    pthread_mutex_lock(&crew->mutex);
    if (crew->drawn)
        fputs("\r\33[K", stderr);
    crew->drawn = false;
    kl__log_print(crew->call->config, KL_LOG_WARN, text);
    pthread_mutex_unlock(&crew->mutex);
}

/* False: better return. */
static bool pause_start(const kl_work *work)
{
    int64_t until_ns = kl__deadline_ns(START_PAUSE_MS);
    while (!kl_work_cancelled(work) && kl__monotonic_ns() < until_ns)
        poll(NULL, 0, TICK_MS);
    return !kl_work_cancelled(work);
}

/* Where no process can be had, it is tried again until one can, for that is no fault of the task, or until its time is
 * over or somebody wants it to end. */
static kl_rc run_process(kl__crew *crew, const kl_work *work, const kl__command_line *line, kl__ended *ret_ended)
{
    kl_rc rc = kl__process_run(line, ret_ended);
    for (int i = 0; rc == KL_ESYSTEM; i++) {
        if (i % START_TOLD == 0)
            tell_failed(crew, work);
        if (!pause_start(work))
            break;
        rc = kl__process_run(line, ret_ended);
    }
    return rc;
}

kl_outcome kl__runner_run(kl_work *work, void *ctx)
{
    kl__runner *runner = ctx;
    kl__ended ended = {0};
    kl_arena arena = {0};
    int64_t began_ns = kl__monotonic_ns();
    kl__command_line line = {.words = runner->words,
                             .environment = environment_of(runner->crew, work, &arena),
                             .input = kl_work_payload(work),
                             .out_max = KL_RESULT_BYTES_MAX,
                             .grace_ms = runner->crew->grace_ms,
                             .unwanted = is_unwanted,
                             .told = take_progress,
                             .ctx = work};
    kl_outcome outcome = KL_RETRY;
    kl_rc rc = line.environment ? run_process(runner->crew, work, &line, &ended) : kl__fail_memory();
    if (rc == KL_OK)
        outcome = conclude(runner->crew, work, &ended, (kl__monotonic_ns() - began_ns) / 1000000, &arena);
    else {
        kl_work_error(work, "its handler could not be %s: %s", rc == KL_ESYSTEM ? "started" : "run", kl_error_text());
        kl_work_retry_after(work, START_PAUSE_MS);
    }
    free(ended.out);
    kl_arena_free(&arena);
    return outcome;
}
