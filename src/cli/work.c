/* work.c - `keyline work`: a worker whose handlers are programs.
 *
 *      SIGINT, SIGTERM, SIGHUP     first: starts nothing more, lets what runs end, gives its shards back     exit 0
 *                                  second: ends what runs, which costs no attempt                            exit 128+n
 *                                  third: ends this program at once, and what runs with it
 *                                  while stores are opened: ends this program at once
 *      --until-empty               by itself                                       exit 0, or 1 when tasks went dead, or 75
 *                                                                                  when a partition's store is away or
 *                                                                                  it cannot be told what is left */
#include "cli/work.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "cli/config.h"
#include "cli/opening.h"
#include "cli/output.h"
#include "cli/process.h"

typedef struct work_opts {
    kl__texts queues, command, kinds, weights, minimums;
    const char *name;
    int64_t until_empty, verbose, progress;
} work_opts;

enum { TICK_MS = 50, BROKEN_MS = 5000 };

struct job {
    kl__call *call;
    const work_opts *opts;
    kl__crew crew;
    kl_handler *handlers;
    size_t handler_count;
    kl_worker_queue *queues;
    kl_worker *worker;
    sigset_t signals;
    int first_signal, last_signal; /* 0: none */
    bool shows;                    /* how far it is, on a terminal */
    int64_t began_ns, shown_ns;
    uint64_t cancelled; /* before the first signal */
    bool broken;        /* the store is of no more use */
    bool away;          /* a partition's store was, at the end, */
    bool untold;        /* and for that or another reason it is not known what is left */
};

/* ---- Handlers ---- */

static bool refuse_kind(const char *text)
{
    kl__complain("--kind is '%s'; give it KIND=COMMAND, such as --kind charge=./charge", text);
    return false;
}

/* Whether a shell would find the command; what begins with more than a plain word is not judged. */
static bool check_shell_command(const char *kind, const char *command)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+";
    char script[512];
    kl__ended ended;
    size_t length = strspn(command, plain);
    if (length == 0 || length > 255 || (command[length] && command[length] != ' '))
        return true;
    snprintf(script, sizeof script, "command -v -- %.*s", (int)length, command);
    kl__command_line line = {.words = (char *[]){"sh", "-c", script, NULL}, .environment = environ};
    if (kl__process_run(&line, &ended) != KL_OK || ended.status == 0)
        return true;
    kl__complain("--kind %s: there is no command %.*s; give its path, or mend PATH", kind, (int)length, command);
    return false;
}

static char **words_of(kl__call *call, const char *const *from, size_t count)
{
    char **words = kl_arena_alloc(&call->arena, (count + 1) * sizeof *words);
    for (size_t i = 0; words && i < count; i++)
        words[i] = (char *)from[i];
    if (words)
        words[count] = NULL;
    return words;
}

static bool add_handler(struct job *job, const char *kind, const char *const *words, size_t count)
{
    kl__runner *runner = kl_arena_alloc(&job->call->arena, sizeof *runner);
    char **copy = words_of(job->call, words, count);
    if (!runner || !copy)
        return kl__fail_call(kl__fail_memory()) == KL_EXIT_OK;
    *runner = (kl__runner){&job->crew, copy};
    job->handlers[job->handler_count++] = (kl_handler){kind, kl__runner_run, runner};
    return true;
}

static bool add_kind(struct job *job, const char *text)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || !equals[1])
        return refuse_kind(text);
    const char *kind = kl__format(&job->call->arena, "%.*s", (int)(equals - text), text);
    return kind && check_shell_command(kind, equals + 1) &&
           add_handler(job, kind, (const char *[]){"sh", "-c", equals + 1}, 3);
}

static bool check_command(const char *word)
{
    bool is_there = strchr(word, '/') && access(word, F_OK) == 0;
    if (kl__process_finds(word))
        return true;
    if (is_there)
        kl__complain("%s is no program that this user may run; `chmod +x` it, or run it by another: `-- sh %s`", word,
                     word);
    else
        kl__complain("there is no command %s; give its path, or mend PATH", word);
    return false;
}

static bool fill_handlers(struct job *job)
{
    const work_opts *opts = job->opts;
    if (opts->kinds.count == 0 && opts->command.count == 0) {
        kl__complain("work needs to know what to run: `keyline work QUEUE -- COMMAND`, or --kind KIND=COMMAND");
        return false;
    }
    job->handlers = kl_arena_alloc(&job->call->arena, (opts->kinds.count + 1) * sizeof *job->handlers);
    if (!job->handlers)
        return kl__fail_call(kl__fail_memory()) == KL_EXIT_OK;
    for (size_t i = 0; i < opts->kinds.count; i++)
        if (!add_kind(job, opts->kinds.items[i]))
            return false;
    if (opts->command.count == 0)
        return true;
    return check_command(opts->command.items[0]) && add_handler(job, NULL, opts->command.items, opts->command.count);
}

/* ---- Queues ---- */

/* `QUEUE=N` of one of our queues. */
static bool take_number(struct job *job, const char *option, const char *text, int64_t min, size_t offset)
{
    const kl__option number = {option, "N", NULL, 0, min, min ? 1000000 : KL_WORKER_THREADS_MAX};
    const char *equals = strchr(text, '=');
    int64_t value;
    for (size_t i = 0; equals && i < job->opts->queues.count; i++) {
        const char *name = job->opts->queues.items[i];
        if (strlen(name) != (size_t)(equals - text) || memcmp(name, text, (size_t)(equals - text)) != 0)
            continue;
        if (!kl__value_parse(&number, option, equals + 1, 0, &value))
            return false;
        *(int64_t *)(void *)((char *)&job->queues[i] + offset) = value;
        return true;
    }
    kl__complain("%s is '%s'; give it QUEUE=N for one of the queues that are worked on, such as %s=2", option, text,
                 job->opts->queues.items[0]);
    return false;
}

static bool take_numbers(struct job *job)
{
    const work_opts *opts = job->opts;
    for (size_t i = 0; i < opts->weights.count; i++)
        if (!take_number(job, "--weight", opts->weights.items[i], 1, offsetof(kl_worker_queue, weight)))
            return false;
    for (size_t i = 0; i < opts->minimums.count; i++)
        if (!take_number(job, "--min", opts->minimums.items[i], 0, offsetof(kl_worker_queue, min)))
            return false;
    return true;
}

/* `I/N`. */
static bool parse_slice(const kl__value *value, int64_t *ret_slice, int64_t *ret_slices)
{
    char *rest;
    long long slice = strtoll(value->text, &rest, 10), slices = *rest == '/' ? strtoll(rest + 1, &rest, 10) : 0;
    if (*rest || slices < 1 || slice < 0 || slice >= slices || slices > KL_SHARDS_MAX) {
        kl__complain("worker.slice is '%s' (%s); give it I/N with I from 0 to N-1, such as 0/4", value->text,
                     value->origin);
        return false;
    }
    *ret_slice = slice;
    *ret_slices = slices;
    return true;
}

static bool restrict_queue(const kl__config *config, const char *name, kl_worker_queue *queue)
{
    kl__value shards = kl__config_value(config, KL_SET_WORKER_SHARDS, name);
    kl__value range = kl__config_value(config, KL_SET_WORKER_SHARD_RANGE, name);
    kl__value slice = kl__config_value(config, KL_SET_WORKER_SLICE, name);
    if (*range.text && (!strchr(range.text, '-') || strchr(range.text, ','))) {
        kl__complain("worker.shard_range is '%s' (%s); give it one range, such as 00-3f, or use --shards for lists",
                     range.text, range.origin);
        return false;
    }
    int64_t per_partition = kl__config_value(config, KL_SET_WORKER_PER_PARTITION, name).number;
    queue->per_partition = per_partition == KL_FOREVER ? 0 : per_partition;
    queue->shards = *shards.text ? shards.text : *range.text ? range.text : NULL;
    return !*slice.text || parse_slice(&slice, &queue->slice, &queue->slices);
}

static int fill_queues(struct job *job)
{
    const work_opts *opts = job->opts;
    kl_queue_info info;
    if (opts->queues.count > KL_WORKER_QUEUES_MAX) {
        kl__complain("work takes up to %d queues, and these are %zu", KL_WORKER_QUEUES_MAX, opts->queues.count);
        return KL_EXIT_USAGE;
    }
    int64_t *attempts = kl_arena_alloc(&job->call->arena, opts->queues.count * sizeof *attempts);
    kl_head_policy *policies = kl_arena_alloc(&job->call->arena, opts->queues.count * sizeof *policies);
    job->queues = kl_arena_alloc(&job->call->arena, opts->queues.count * sizeof *job->queues);
    if (!job->queues || !attempts || !policies)
        return kl__fail_call(kl__fail_memory());
    memset(job->queues, 0, opts->queues.count * sizeof *job->queues);
    job->crew.queues = opts->queues.items;
    if (!take_numbers(job))
        return KL_EXIT_USAGE;
    for (size_t i = 0; i < opts->queues.count; i++) {
        kl_worker_queue *queue = &job->queues[i];
        if (!restrict_queue(job->call->config, opts->queues.items[i], queue))
            return KL_EXIT_USAGE;
        int status = kl__call_open(job->call, opts->queues.items[i], &queue->queue);
        if (status != KL_EXIT_OK)
            return status;
        queue->handlers = job->handlers;
        queue->handler_count = job->handler_count;
        kl_rc rc = kl_queue_show(queue->queue, &job->call->arena, &info);
        if (rc != KL_OK)
            return kl__fail_call(rc);
        attempts[i] = info.settings.attempts_max;
        policies[i] = info.settings.head_policy;
    }
    job->crew.attempts = attempts;
    job->crew.policies = policies;
    job->crew.queue_count = opts->queues.count;
    return KL_EXIT_OK;
}

/* ---- Signals ---- */

/* Before any thread is started, so that none of them is interrupted. What is ignored stays so: nohup. */
static void block_signals(struct job *job)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    sigemptyset(&job->signals);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction action;
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&job->signals, numbers[i]);
    }
    pthread_sigmask(SIG_BLOCK, &job->signals, NULL);
}

static int next_signal(const struct job *job)
{
    const struct timespec at_once = {0, 0};
    int number = sigtimedwait(&job->signals, NULL, &at_once);
    return number > 0 ? number : 0;
}

/* ---- Telling ---- */

static void KL_PRINTF(2, 3) say(struct job *job, const char *format, ...)
{
    va_list arguments;
    if (kl__call_json(job->call))
        return;
    pthread_mutex_lock(&job->crew.mutex);
    fputs(job->crew.drawn ? "\r\33[Kkeyline: " : "keyline: ", stderr);
    job->crew.drawn = false;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    pthread_mutex_unlock(&job->crew.mutex);
}

static void show_progress(struct job *job)
{
    int64_t now_ns = kl__monotonic_ns();
    if (!job->shows || now_ns - job->shown_ns < INT64_C(200000000))
        return;
    kl_worker_info info = kl_worker_show(job->worker);
    pthread_mutex_lock(&job->crew.mutex);
    fprintf(stderr,
            "\r%" PRIu64 " done, %" PRIu64 " retried, %" PRIu64 " dead; %" PRIu64 " running, %" PRIu64 " held, %" PRIu64
            " shards\33[K",
            info.done, info.retried, info.dead, info.running, info.held, info.shards);
    job->crew.drawn = true;
    pthread_mutex_unlock(&job->crew.mutex);
    job->shown_ns = now_ns;
}

/* It ended by itself, and not because of a signal. */
static bool was_emptied(const struct job *job) { return job->opts->until_empty && !job->first_signal; }

/* What stays of each queue, with the reasons; returns how many tasks are known to. The store may be silent: so who was
 * told to end does not ask it, and a signal has its usual effect. */
static uint64_t tell_left(struct job *job)
{
    uint64_t sum = 0, left;
    const char *why, *away;
    if (was_emptied(job))
        pthread_sigmask(SIG_UNBLOCK, &job->signals, NULL);
    for (size_t i = 0; was_emptied(job) && i < job->opts->queues.count; i++) {
        job->untold |= !kl__work_left(&job->queues[i], &job->call->arena, &left, &why, &away);
        sum += left;
        if (why)
            say(job, "%s", why);
        if (away)
            say(job, "%s", away);
        job->away |= away != NULL || job->untold;
    }
    return sum;
}

static int tell_end(struct job *job, const kl_worker_info *info, uint64_t given_up, uint64_t left)
{
    static const kl__column columns[] = {{"done", 0},    {"retried", 0}, {"dead", 0}, {"cancelled", 0}, {"given_up", 0},
                                         {"refused", 0}, {"halted", 0},  {"left", 0}, {"took_ms", 0},   {NULL, 0}};
    int64_t took_ms = (kl__monotonic_ns() - job->began_ns) / 1000000;
    char rest[192] = "";
    kl__cell stays = was_emptied(job) && !job->untold ? kl__cell_number((int64_t)left) : kl__cell_none();
    if (info->cancelled)
        snprintf(rest, sizeof rest, ", %" PRIu64 " cancelled", info->cancelled);
    if (given_up)
        snprintf(rest + strlen(rest), sizeof rest - strlen(rest), ", %" PRIu64 " given up", given_up);
    if (info->refused)
        snprintf(rest + strlen(rest), sizeof rest - strlen(rest), ", %" PRIu64 " came too late", info->refused);
    if (info->halted)
        snprintf(rest + strlen(rest), sizeof rest - strlen(rest), ", %" PRIu64 " halted", info->halted);
    if (left)
        snprintf(rest + strlen(rest), sizeof rest - strlen(rest), ", %" PRIu64 " left", left);
    if (job->crew.drawn)
        fputs("\r\33[K", stderr);
    return kl__out_done(job->call, columns,
                        (kl__cell[]){kl__cell_number((int64_t)info->done), kl__cell_number((int64_t)info->retried),
                                     kl__cell_number((int64_t)info->dead), kl__cell_number((int64_t)info->cancelled),
                                     kl__cell_number((int64_t)given_up), kl__cell_number((int64_t)info->refused),
                                     kl__cell_number((int64_t)info->halted), stays, kl__cell_duration(took_ms)},
                        "%" PRIu64 " done, %" PRIu64 " retried, %" PRIu64 " dead%s in %.1f s", info->done,
                        info->retried, info->dead, rest, (double)took_ms / 1000);
}

/* ---- Working ---- */

static kl_rc start_worker(struct job *job)
{
    const kl__value *values = job->call->config->values;
    kl_worker_opts opts = {.size = sizeof opts,
                           .name = job->opts->name,
                           .concurrency = values[KL_SET_WORKER_CONCURRENCY].number,
                           .window_max = values[KL_SET_WORKER_WINDOW].number,
                           .stop_ms = values[KL_SET_WORKER_STOP].number,
                           .until_empty = job->opts->until_empty,
                           .log = kl__log_print,
                           .log_ctx = job->call->config};
    job->began_ns = kl__monotonic_ns();
    return kl_worker_start(job->queues, job->opts->queues.count, &opts, &job->worker);
}

static void take_signal(struct job *job, int number)
{
    kl_worker_info info = kl_worker_show(job->worker);
    if (!job->first_signal) {
        job->first_signal = number;
        job->cancelled = info.cancelled;
        atomic_store(&job->crew.stopping, true);
        say(job, "starts nothing more, and waits for %" PRIu64 " running task%s; once more ends %s", info.running,
            kl__plural(info.running), info.running == 1 ? "it" : "them");
        if (kl_worker_drain(job->worker, 0) != KL_OK)
            return; /* not yet; the loop goes on waiting */
    } else {
        job->last_signal = number;
        say(job, "ends %" PRIu64 " running task%s, which costs %s no attempt", info.running, kl__plural(info.running),
            info.running == 1 ? "it" : "them");
    }
}

/* A store that fails for good must be opened again, and on disk this process keeps others from doing so. */
static bool is_broken(struct job *job)
{
    job->broken |= kl_worker_show(job->worker).broken_ms >= BROKEN_MS;
    if (job->broken)
        say(job, "ends, for the store is of no more use until it is opened again; see to it, and start this again");
    return job->broken;
}

/* Until it has ended or somebody has lost patience. */
static void wait_for_end(struct job *job)
{
    while (!job->last_signal && kl_worker_wait(job->worker, TICK_MS) != KL_OK && !is_broken(job)) {
        int number = next_signal(job);
        if (number)
            take_signal(job, number);
        show_progress(job);
    }
}

/* Ends it, and returns what it has done altogether. Figures can only be had before it is closed: where tasks still run,
 * the handlers count those that are done all the same. They also count those that were ended while it stopped; what was
 * cancelled then is among these. */
static kl_worker_info close_worker(struct job *job, uint64_t *ret_given_up)
{
    if (job->last_signal)
        pthread_sigmask(SIG_UNBLOCK, &job->signals, NULL); /* the next one has its usual effect */
    kl_worker_info info = kl_worker_show(job->worker);
    atomic_store(&job->crew.closing, true);
    kl_worker_close(job->worker);
    uint64_t late = atomic_load(&job->crew.done_late);
    late = late < info.running ? late : info.running;
    info.done += late;
    uint64_t ended = atomic_load(&job->crew.given_up), cancelled = info.cancelled - job->cancelled;
    *ret_given_up = info.running - late + (ended > cancelled ? ended - cancelled : 0);
    return info;
}

static int finish(struct job *job)
{
    uint64_t given_up;
    kl_worker_info info = close_worker(job, &given_up);
    int status = tell_end(job, &info, given_up, tell_left(job));
    if (status != KL_EXIT_OK)
        return status;
    if (job->last_signal)
        return KL_EXIT_SIGNAL + job->last_signal;
    if (job->broken)
        return KL_EXIT_FAILURE;
    if (job->away)
        return KL_EXIT_AGAIN;
    return job->opts->until_empty && info.dead + info.halted > 0 ? KL_EXIT_FAILURE : KL_EXIT_OK;
}

static bool is_shown(const struct job *job)
{
    const char *term = getenv("TERM");
    return job->opts->progress >= 0 && !kl__call_json(job->call) && isatty(STDERR_FILENO) && term && *term &&
           strcmp(term, "dumb") != 0;
}

static int work(struct job *job)
{
    if (!fill_handlers(job))
        return KL_EXIT_USAGE;
    kl__opening opening;
    kl__opening_begin(&opening, &job->signals);
    int status = fill_queues(job);
    kl__opening_end(&opening);
    if (status != KL_EXIT_OK)
        return status;
    kl_rc rc = start_worker(job);
    if (rc != KL_OK)
        return kl__fail_given(rc);
    say(job, "works on %s%s; %s", job->opts->queues.items[0], job->opts->queues.count > 1 ? " and others" : "",
        job->opts->until_empty ? "ends when nothing is left that it can run" : "Ctrl-C ends it");
    wait_for_end(job);
    return finish(job);
}

static int run_work(kl__call *call)
{
    struct job job = {.call = call, .opts = call->values};
    if (!kl__process_prepare() || !kl__crew_prepare(&job.crew, call))
        return KL_EXIT_FAILURE;
    block_signals(&job);
    pthread_mutex_init(&job.crew.mutex, NULL);
    job.crew.grace_ms = call->config->values[KL_SET_WORKER_GRACE].number;
    job.crew.verbose = job.opts->verbose;
    job.shows = is_shown(&job);
    int status = work(&job);
    pthread_mutex_destroy(&job.crew.mutex);
    return status;
}

/* ---- Tables ---- */

static const kl__argument arguments[] = {
    {"QUEUE", offsetof(work_opts, queues), KL_SEVERAL, "the queues; those that are not there are made"},
    {"COMMAND", offsetof(work_opts, command), KL_BEHIND, "what to run for each task, with its words"},
    {NULL, 0, 0, NULL},
};

static const kl__option options[] = {
    {"--kind", "KIND=COMMAND...", "run tasks of this kind with this command of the shell; may be repeated",
     offsetof(work_opts, kinds), 0, 0},
    {"--until-empty", NULL,
     "end when no task waits that could be run; exit with 1 when some went dead meanwhile, with 75 when a partition's "
     "store is away, or it cannot be told what is left",
     offsetof(work_opts, until_empty), 0, 0},
    {"--weight", "QUEUE=N...", "this queue's share of the tasks when all queues have some (1)",
     offsetof(work_opts, weights), 0, 0},
    {"--min", "QUEUE=N...", "so many running tasks are kept free for this queue (0)", offsetof(work_opts, minimums), 0,
     0},
    {"--name", "NAME", "the worker's name, for people (host and process)", offsetof(work_opts, name), 0, 0},
    {"--verbose", NULL, "a line for each task, also for those that are done", offsetof(work_opts, verbose), 0, 0},
    {"--[no-]progress", NULL, "show on a terminal how far it is", offsetof(work_opts, progress), 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

_Static_assert(KL_CALL_QUEUES_MAX >= KL_WORKER_QUEUES_MAX, "a call holds all queues of a worker");

const kl__command kl__work_command = {
    .name = "work",
    .summary = "run a program for each task of a queue",
    .about = "Runs a program for each task: tasks of one key one at a time and in order, others at once.\n"
             "\n"
             "  keyline work orders -- ./charge\n"
             "  keyline work orders mails --weight orders=3 --concurrency 8 -- ./handle\n"
             "  keyline work orders --until-empty --kind charge=./charge --kind 'refund=./refund --all'\n"
             "\n"
             "The program gets the payload on its standard input. Its exit status says what came of the\n"
             "task: 0 is done, 65 is dead, 75 and every other is to be tried again. Its standard output\n"
             "is the task's result, up to 1 MiB, and the last 4 KiB of its standard error are the\n"
             "error. Lines such as `40 half of it` on descriptor 3 tell how far it is. The environment\n"
             "has KEYLINE_TASK_ID, KEYLINE_QUEUE, KEYLINE_ATTEMPT (1 for the first), KEYLINE_PRIORITY,\n"
             "KEYLINE_PARTITION (orders__p1), KEYLINE_LAYOUT (1; one more each time the number of\n"
             "partitions or shards was changed) and KEYLINE_STORE; where the task has one, KEYLINE_KEY,\n"
             "KEYLINE_KIND, KEYLINE_GROUP, KEYLINE_JOB, KEYLINE_TRACEPARENT and TRACEPARENT; and for\n"
             "each header KEYLINE_HEADER_ and its name in capitals, with _ for all but letters and digits;\n"
             "of several whose names become the same, the first. What has a zero byte in it is left out;\n"
             "`keyline show` has it.\n"
             "\n"
             "Each program runs in a process group of its own. When the task's time is over, it is\n"
             "cancelled or the worker gives it up, the group gets SIGTERM, and SIGKILL when the program\n"
             "has ended or --grace is over. A worker that is killed takes its programs with it,\n"
             "and what they have started in their groups.\n"
             "\n"
             "The first SIGINT, SIGTERM or SIGHUP lets running tasks end, hands the shards to others\n"
             "and exits with 0. The second ends running tasks, which costs them no attempt, and exits\n"
             "with 128 and the signal's number. Any number of workers may work on a queue. When its store\n"
             "fails for good, as a disk does whose sync has failed, a worker ends with 1 after five\n"
             "seconds, so that whoever starts it again opens the store again.\n",
    .arguments = arguments,
    .options = options,
    .values_size = sizeof(work_opts),
    .takes = KL_TAKES_JSON | KL_TAKES_STORE | KL_TAKES_WORK,
    .run = run_work,
};
