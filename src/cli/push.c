/* push.c - `keyline push`: puts one task, or those of a file of lines of JSON.
 *
 * A file is put in batches. Nothing of it is passed over in silence: at the first line that is wrong everything before
 * it has been stored, the line is named, and how to go on is said; with --skip-bad each such line is named and counted.
 * A batch that the library refuses is put again task by task, so that the one line at fault is found. */
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/tasks_in.h"
#include "keyline/queue.h"
#include "queue/json.h"

typedef struct push_opts {
    const char *queue, *payload, *file, *token;
    int64_t skip_bad, progress, batch;
    kl__task_opts task;
} push_opts;

enum {
    BATCH_TASKS = 1000,
    BATCH_BYTES = 4 << 20,
    TOKEN_BYTES = KL_UNIQUE_BYTES_MAX + 1,
    TOKEN_GIVEN_MAX = KL_UNIQUE_BYTES_MAX - 32,
    BAD_SHOWN_MAX = 20,
    LINGER_MS = 200, /* a task of a pipe that has become silent is stored after so long */
};

/* ---- One task ---- */

/* Whether something may come on the standard input: from a file that is not at its end, or a pipe that is not. */
static bool input_waits(void)
{
    struct stat about;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (fstat(STDIN_FILENO, &about) != 0)
        return false;
    if (S_ISREG(about.st_mode))
        return about.st_size > lseek(STDIN_FILENO, 0, SEEK_CUR);
    if (!S_ISFIFO(about.st_mode) && !S_ISSOCK(about.st_mode))
        return false;
    return poll(&input, 1, 0) == 0 || input.revents & POLLIN;
}

static const kl__column one_columns[] = {{"id", 0}, {"queue", 0}, {"duplicate", 0}, {NULL, 0}};

static int push_one(kl__call *call, kl_queue *queue, const push_opts *opts, kl_put *task)
{
    kl_put_result result;
    char id[KL_ID_TEXT_BYTES];
    if (opts->payload && strcmp(opts->payload, "-") == 0) {
        if (!kl__payload_read(&call->arena, &task->payload))
            return KL_EXIT_USAGE;
    } else {
        task->payload = kl_str(opts->payload);
    }
    kl_rc rc = kl_queue_put(queue, task, 1, kl_str(opts->token), &result);
    if (rc != KL_OK)
        return kl__fail_given(rc);
    kl_id_print(&result.id, id);
    int status = kl__out_done(
        call, one_columns,
        (kl__cell[]){kl__cell_id(&result.id), kl__cell_text(opts->queue), kl__cell_flag(result.duplicate)}, "%s", id);
    if (result.duplicate)
        kl__out_note(call, "it was there already, and nothing was stored");
    return status;
}

/* ---- Many ---- */

struct bulk {
    kl__call *call;
    kl_queue *queue;
    const push_opts *opts;
    kl_put base; /* what lines do not say */
    kl__lines lines;
    kl__progress progress;
    kl_arena arena; /* of the batch */
    kl_put *tasks;
    uint64_t *numbers; /* the line of each */
    kl_put_result *results;
    size_t room, count, bytes;
    int64_t begun_ns; /* when its first line came */
    uint64_t stored, duplicates, bad;
};

static void count_results(struct bulk *bulk, const kl_put_result *results, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bulk->duplicates += results[i].duplicate;
        bulk->stored += !results[i].duplicate;
    }
}

/* Each call has a token of its own, so that the same file with the same --token stores nothing twice. It says how many
 * tasks the call has: a batch that was refused begins with the same line as its first task alone. */
static kl_bytes token_of(const struct bulk *bulk, uint64_t line, size_t count, char buffer[TOKEN_BYTES])
{
    if (!bulk->opts->token)
        return (kl_bytes){0};
    snprintf(buffer, TOKEN_BYTES, "%s/%" PRIu64 "+%zu", bulk->opts->token, line, count);
    return kl_str(buffer);
}

/* {"skipped": {"file": ..., "line": ..., "text": ...}} on a line. */
static bool print_skipped(const struct bulk *bulk, uint64_t number, const char *why)
{
    json_t *skipped = kl__json_object(), *whole = kl__json_object();
    bool made = kl__json_set_bytes(skipped, "file", kl_str(bulk->lines.name)) &&
                kl__json_set_int(skipped, "line", (int64_t)number) && kl__json_set_bytes(skipped, "text", kl_str(why));
    made = kl__json_set(whole, "skipped", skipped) && made && json_dumpf(whole, stderr, JSON_COMPACT) == 0;
    if (made)
        fputc('\n', stderr);
    json_decref(whole);
    return made;
}

/* To people only the first ones: they are to see what is wrong. A program gets them all. */
static void tell_skipped(const struct bulk *bulk, uint64_t number, const char *why)
{
    if (kl__call_json(bulk->call) && print_skipped(bulk, number, why))
        return;
    if (bulk->bad <= BAD_SHOWN_MAX)
        fprintf(stderr, "keyline: line %" PRIu64 " of %s is skipped: %s\n", number, bulk->lines.name, why);
    else if (bulk->bad == BAD_SHOWN_MAX + 1)
        fprintf(stderr, "keyline: further lines that are skipped are only counted\n");
}

/* KL_EXIT_OK: go on. */
static int tell_bad(struct bulk *bulk, uint64_t number, const char *why)
{
    kl__progress_clear(&bulk->progress);
    bulk->bad++;
    if (!bulk->opts->skip_bad) {
        const char *sentence = kl__format(&bulk->call->arena,
                                          "line %" PRIu64 " of %s: %s (all before it is stored, %" PRIu64
                                          " in number; mend the line and push "
                                          "the file from there, or say --skip-bad)",
                                          number, bulk->lines.name, why, bulk->stored + bulk->duplicates);
        kl__complain_of(KL_EINVAL, KL_EXIT_FAILURE, sentence ? sentence : why);
        return KL_EXIT_FAILURE;
    }
    tell_skipped(bulk, number, why);
    return KL_EXIT_OK;
}

/* A call that failed may have stored some of its tasks: in one of several stores, or all of them, when it was the
 * answer that did not come. */
static int tell_failure(struct bulk *bulk, kl_rc rc, uint64_t first, uint64_t last)
{
    kl__progress_clear(&bulk->progress);
    int status = kl__exit_of(rc);
    const char *sentence = kl__format(
        &bulk->call->arena,
        "%s (all before line %" PRIu64 " of %s is stored, %" PRIu64
        " in number, and perhaps some of what stands from there "
        "to line %" PRIu64 "; %s)",
        kl_error_text(), first, bulk->lines.name, bulk->stored + bulk->duplicates, last,
        bulk->opts->token ? "push all of the file again with the same --token, and nothing is stored twice"
                          : "push the file from there, and with --token if nothing may ever be stored twice");
    kl__complain_of(rc, status, sentence ? sentence : kl_error_text());
    return status;
}

/* The batch was refused because of one of its tasks. */
static int put_singly(struct bulk *bulk)
{
    static const char first[] = "task 1 of 1: ";
    char token[TOKEN_BYTES], why[KL_LINE_ERROR_BYTES];
    for (size_t i = 0; i < bulk->count; i++) {
        uint64_t number = bulk->numbers[i];
        kl_rc rc = kl_queue_put(bulk->queue, &bulk->tasks[i], 1, token_of(bulk, number, 1, token), bulk->results);
        if (rc == KL_OK) {
            count_results(bulk, bulk->results, 1);
            continue;
        }
        if (rc != KL_EINVAL)
            return tell_failure(bulk, rc, number, number);
        const char *text = kl_error_text(); /* which counts the tasks of the call, and that is one */
        snprintf(why, sizeof why, "%s", text + (strncmp(text, first, strlen(first)) == 0 ? strlen(first) : 0));
        int status = tell_bad(bulk, number, why);
        if (status != KL_EXIT_OK)
            return status;
    }
    return KL_EXIT_OK;
}

static int put_batch(struct bulk *bulk)
{
    char token[TOKEN_BYTES];
    int status = KL_EXIT_OK;
    if (bulk->count == 0)
        return KL_EXIT_OK;
    kl_rc rc = kl_queue_put(bulk->queue, bulk->tasks, bulk->count, token_of(bulk, bulk->numbers[0], bulk->count, token),
                            bulk->results);
    if (rc == KL_OK)
        count_results(bulk, bulk->results, bulk->count);
    else if (rc == KL_EINVAL)
        status = put_singly(bulk);
    else
        status = tell_failure(bulk, rc, bulk->numbers[0], bulk->numbers[bulk->count - 1]);
    kl__progress_tell(&bulk->progress, bulk->stored + bulk->duplicates, bulk->lines.bytes, bulk->lines.size);
    kl_arena_reset(&bulk->arena);
    bulk->count = bulk->bytes = 0;
    return status;
}

static int take_line(struct bulk *bulk, kl_bytes line)
{
    char why[KL_LINE_ERROR_BYTES];
    kl_put *task = &bulk->tasks[bulk->count];
    *task = bulk->base;
    if (!kl__task_read(line, kl__wall_ms(), &bulk->arena, task, why)) {
        int status = put_batch(bulk); /* what stands before it comes first */
        return status == KL_EXIT_OK ? tell_bad(bulk, bulk->lines.number, why) : status;
    }
    if (bulk->count == 0)
        bulk->begun_ns = kl__monotonic_ns();
    bulk->numbers[bulk->count++] = bulk->lines.number;
    bulk->bytes += line.len;
    return bulk->count == bulk->room || bulk->bytes >= BATCH_BYTES ? put_batch(bulk) : KL_EXIT_OK;
}

/* Whether the next line is too long in coming for those that are here. Under a token batches must be the same each
 * time, and wait until they are full. */
static bool is_silent(struct bulk *bulk)
{
    if (bulk->count == 0 || bulk->opts->token || kl__lines_at_hand(&bulk->lines, 0))
        return false;
    int64_t left_ms = LINGER_MS - (kl__monotonic_ns() - bulk->begun_ns) / 1000000;
    return left_ms <= 0 || !kl__lines_at_hand(&bulk->lines, left_ms);
}

static int take_lines(struct bulk *bulk)
{
    kl_bytes line;
    int status = KL_EXIT_OK, more;
    while ((more = kl__lines_next(&bulk->lines, &line)) > 0) {
        status = take_line(bulk, line);
        if (status == KL_EXIT_OK && is_silent(bulk))
            status = put_batch(bulk);
        if (status != KL_EXIT_OK)
            return status;
    }
    status = put_batch(bulk);
    return more < 0 && status == KL_EXIT_OK ? KL_EXIT_FAILURE : status;
}

static int tell_totals(struct bulk *bulk)
{
    static const kl__column columns[] = {{"queue", 0}, {"stored", 0}, {"duplicates", 0}, {"bad", 0}, {NULL, 0}};
    char rest[96] = "";
    if (bulk->duplicates)
        snprintf(rest, sizeof rest, ", %" PRIu64 " %s there already", bulk->duplicates,
                 bulk->duplicates == 1 ? "was" : "were");
    if (bulk->bad)
        snprintf(rest + strlen(rest), sizeof rest - strlen(rest), ", %" PRIu64 " bad line%s skipped", bulk->bad,
                 bulk->bad == 1 ? " was" : "s were");
    return kl__out_done(bulk->call, columns,
                        (kl__cell[]){kl__cell_text(bulk->opts->queue), kl__cell_number((int64_t)bulk->stored),
                                     kl__cell_number((int64_t)bulk->duplicates), kl__cell_number((int64_t)bulk->bad)},
                        "%" PRIu64 " task%s stored in %s%s", bulk->stored, kl__plural(bulk->stored), bulk->opts->queue,
                        rest);
}

static int push_many(kl__call *call, kl_queue *queue, const push_opts *opts, const kl_put *base)
{
    struct bulk bulk = {.call = call, .queue = queue, .opts = opts, .base = *base};
    bulk.room = (size_t)(opts->batch ? opts->batch : BATCH_TASKS);
    bulk.tasks = kl_arena_alloc(&call->arena, bulk.room * sizeof *bulk.tasks);
    bulk.numbers = kl_arena_alloc(&call->arena, bulk.room * sizeof *bulk.numbers);
    bulk.results = kl_arena_alloc(&call->arena, bulk.room * sizeof *bulk.results);
    if (!bulk.tasks || !bulk.numbers || !bulk.results)
        return kl__fail_call(kl__fail_memory());
    if (!kl__lines_open(&bulk.lines, opts->file))
        return KL_EXIT_USAGE;
    kl__progress_begin(&bulk.progress, kl__call_json(call) && !opts->progress ? -1 : opts->progress);
    int status = take_lines(&bulk);
    kl__progress_clear(&bulk.progress);
    kl__lines_close(&bulk.lines);
    kl_arena_free(&bulk.arena);
    return status == KL_EXIT_OK ? tell_totals(&bulk) : status;
}

/* ---- The command ---- */

static bool check(const push_opts *opts)
{
    if (opts->file && opts->payload) {
        kl__complain("push takes a payload or --file, not both; leave out '%s'", opts->payload);
        return false;
    }
    if (!opts->file && !opts->payload && input_waits()) {
        kl__complain(
            "push was given no payload, and does not read its standard input unasked; write - as the payload to "
            "read it from there, or '' for an empty one");
        return false;
    }
    if (opts->skip_bad && !opts->file) {
        kl__complain("--skip-bad is about lines of a file; give it --file, or leave it out");
        return false;
    }
    if (!opts->file && opts->task.unique_ms && !opts->task.unique) {
        kl__complain("--unique-for says for how long, but there is no --unique; add that, or leave both out");
        return false;
    }
    if (opts->token && strlen(opts->token) > TOKEN_GIVEN_MAX) {
        kl__complain("--token has %zu bytes; it may have %d", strlen(opts->token), TOKEN_GIVEN_MAX);
        return false;
    }
    return true;
}

static int run_push(kl__call *call)
{
    const push_opts *opts = call->values;
    kl_put task;
    kl_queue *queue;
    if (!check(opts) || !kl__task_fill(&opts->task, &call->arena, &task))
        return KL_EXIT_USAGE;
    if (strncmp(call->config->values[KL_SET_STORE].text, "memory:", 7) == 0) {
        kl__complain("memory: ends with this command, and the task with it; name a store that lasts with --store");
        return KL_EXIT_USAGE;
    }
    int status = kl__call_open(call, opts->queue, &queue);
    if (status != KL_EXIT_OK)
        return status;
    return opts->file ? push_many(call, queue, opts, &task) : push_one(call, queue, opts, &task);
}

static const kl__argument arguments[] = {
    {"QUEUE", offsetof(push_opts, queue), KL_NEEDED, "the queue, which is made when there is none"},
    {"PAYLOAD", offsetof(push_opts, payload), KL_OPTIONAL,
     "what the handler gets; - reads it from the standard input, none is an empty one"},
    {NULL, 0, 0, NULL},
};

static const kl__option options[] = {
    KL__TASK_OPTIONS(push_opts),
    KL__TASK_TIME_OPTIONS(push_opts),
    {"--token", "TEXT",
     "names this push: made again within an hour, it stores nothing twice; of a file, while neither it nor --batch has "
     "changed, and each batch waits until it is full",
     offsetof(push_opts, token), 0, 0},
    {"--file", "FILE", "push the tasks in this file, a JSON object on each line; - is the standard input",
     offsetof(push_opts, file), 0, 0},
    {"--skip-bad", NULL, "go on behind lines that are wrong, and name them on standard error",
     offsetof(push_opts, skip_bad), 0, 0},
    {"--batch", "N", "lines stored at a time (1000); fewer when the next is long in coming", offsetof(push_opts, batch),
     1, KL_PUT_MAX},
    {"--[no-]progress", NULL, "show how far it is: a bar on a terminal, lines elsewhere", offsetof(push_opts, progress),
     0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

const kl__command kl__push_command = {
    .name = "push",
    .summary = "put a task into a queue, or many from a file",
    .about = "Puts a task and prints its id. It is durable then. A repeat by --token or --unique stores\n"
             "nothing and prints the id of the first.\n"
             "\n"
             "  keyline push orders --key customer-7 'charge 12.00'\n"
             "  keyline push orders --key customer-7 --kind charge --in 5m - <invoice.json\n"
             "  keyline push orders --file tasks.ndjson\n"
             "\n"
             "With --file, each line is an object with the fields key, payload, kind, priority, in, at,\n"
             "attempts, timeout, unique, unique_for, group, headers, tags, traceparent and partition. A\n"
             "payload that is no text is stored as the JSON that it is, letter by letter; {\"base64\": \"...\"}\n"
             "stands for other bytes. What a line does not say, the options do. At the first line that is\n"
             "wrong, everything before it is stored and the line is named. With --skip-bad and --json\n"
             "standard error tells each as {\"skipped\": {\"file\": \"...\", \"line\": 7, \"text\": \"...\"}}.\n",
    .arguments = arguments,
    .options = options,
    .values_size = sizeof(push_opts),
    .takes = KL_TAKES_JSON | KL_TAKES_STORE,
    .run = run_push,
};
