/* test_postgres_crash.c - worker processes are killed, the server crashes and backends are terminated, all under load.
 *
 * Producers put numbered tasks for each key, some through the library and some in SQL together with a row of their own
 * in one transaction. Worker processes note each start and each end in one file, which is opened for appending, so its
 * lines stand in the order in which things happened. Some tasks are to be tried again, so that others of their segments
 * are settled before them. Everything that may be cleared away is, all the time: segments take turns after every few
 * tasks, and left-overs move at once. In the end
 *
 *     every task that was acknowledged has been run to its end, and no other: whatever was put is one task, with one
 *     id, however often it was put again because nobody knew, and however often it ran; of each key, a task was first
 *     started after the one before it had ended; of each key, no task was started while another one ran in a process
 *     that lived.
 *
 * KL_TEST_KILLS: how many workers are killed; a fifth as many times the server crashes, and backends are terminated. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/random.h"
#include "store/pg_server.h"
#include "work/support.h"

enum {
    KEYS = 24,
    WORKERS = 3,
    KILLS = 5,
    LEASE_MS = 1000,
    NUMBERS_MAX = 1 << 14,
    BETWEEN = 60,
    BATCH = 8,
    AHEAD = 300,
    FAIL_EACH = 7,
    CLEAR_EACH = 10
};

/* --- A worker process: this program once more, told by its environment what it is --- */

static int log_fd = -1;

static void note(const char *what, const kl_work *work)
{
    char line[96], id[KL_ID_TEXT_BYTES];
    kl_bytes payload = kl_work_payload(work);
    kl_task_id task = kl_work_id(work);
    kl_id_print(&task, id);
    int length = snprintf(line, sizeof line, "%s %d %.*s %s\n", what, (int)getpid(), (int)payload.len,
                          (const char *)payload.data, id);
    if (write(log_fd, line, (size_t)length) != length)
        _exit(3);
}

/* Some tasks fail at first; their keys wait for them. */
static bool fails(const kl_work *work)
{
    char text[32];
    int key = 0, number = 0;
    kl_bytes payload = kl_work_payload(work);
    snprintf(text, sizeof text, "%.*s", (int)payload.len, (const char *)payload.data);
    return kl_work_attempt(work) == 1 && sscanf(text, "%d %d", &key, &number) == 2 && number % FAIL_EACH == 0;
}

static kl_outcome handle(kl_work *work, void *ctx)
{
    (void)ctx;
    note("start", work);
    if (fails(work)) {
        note("fail", work);
        kl_work_retry_after(work, 1);
        return KL_RETRY;
    }
    note("end", work);
    return KL_DONE;
}

__attribute__((constructor)) static void be_a_worker(void)
{
    const char *url = getenv("KL_PG_CRASH_URL"), *log = getenv("KL_PG_CRASH_LOG");
    kl_store *store = NULL;
    kl_queue *queue = NULL;
    kl_worker *worker = NULL;
    if (!url || !log)
        return;
    log_fd = open(log, O_WRONLY | O_APPEND);
    kl_handler handler = {.fn = handle};
    kl_rc rc = KL_EBUSY;
    while (log_fd >= 0 && rc != KL_OK) { /* the server may be down just now */
        rc = store ? KL_OK : kl_store_open(url, NULL, &store);
        if (rc == KL_OK)
            rc = kl_queue_open(store, "orders", NULL, &queue);
    }
    kl_worker_queue served = {.queue = queue, .handlers = &handler, .handler_count = 1};
    kl_worker_opts opts = {.size = sizeof opts, .concurrency = 4};
    if (rc == KL_OK && kl_worker_start(&served, 1, &opts, &worker) == KL_OK)
        for (;;)
            pause();
    _exit(3);
}

/* --- The campaign --- */

struct campaign {
    char url[PG_URL_BYTES], schema[64], dir[WORKDIR_BYTES], log[WORKDIR_BYTES + 16];
    kl_store *store;
    kl_queue *queue;
    pid_t workers[WORKERS];
    pthread_t producer;
    atomic_bool stops;
    _Atomic long put, ended;
    int next[KEYS]; /* of each key; the producer's */
    uint64_t random;
    PGconn *sweeper;
    long cleared_at; /* how many had ended */

    /* What the log says, as far as it was read. */
    FILE *reading;
    char ids[KEYS][NUMBERS_MAX][KL_ID_TEXT_BYTES]; /* empty: it was not started */
    bool has_ended[KEYS][NUMBERS_MAX];
    int first_open[KEYS]; /* the first number that has not ended */
    int runs_in[KEYS];    /* the process that runs a task of the key; 0: none does */
};

static pid_t spawn(const struct campaign *campaign)
{
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    char program[512] = {0};
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0 || getppid() != parent)
        _exit(2);
    setenv("KL_PG_CRASH_URL", campaign->url, 1);
    setenv("KL_PG_CRASH_LOG", campaign->log, 1);
    execl(program, program, (char *)NULL);
    _exit(2);
}

static void kill_worker(struct campaign *campaign, int which)
{
    pid_t pid = campaign->workers[which];
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    campaign->workers[which] = 0;
    int fd = open(campaign->log, O_WRONLY | O_APPEND);
    CHECK(dprintf(fd, "kill %d 0 0 -\n", (int)pid) > 0);
    close(fd);
}

/* --- What happened --- */

static void take_start(struct campaign *campaign, int pid, int key, int number, const char *id)
{
    char *known = campaign->ids[key][number];
    if (*known && strcmp(known, id) != 0)
        test_fail(__FILE__, __LINE__, "key %d: %d is two tasks, %s and %s", key, number, known, id);
    snprintf(known, KL_ID_TEXT_BYTES, "%s", id);
    if (number > campaign->first_open[key])
        test_fail(__FILE__, __LINE__, "key %d: %d was started before %d had ended", key, number,
                  campaign->first_open[key]);
    if (campaign->runs_in[key] != 0)
        test_fail(__FILE__, __LINE__, "key %d: %d was started by %d while %d ran a task of it", key, number, pid,
                  campaign->runs_in[key]);
    campaign->runs_in[key] = pid;
}

static void take_end(struct campaign *campaign, int key, int number)
{
    campaign->runs_in[key] = 0;
    if (!campaign->has_ended[key][number])
        atomic_fetch_add(&campaign->ended, 1);
    campaign->has_ended[key][number] = true;
    while (campaign->has_ended[key][campaign->first_open[key]])
        campaign->first_open[key]++;
}

static void take_line(struct campaign *campaign, const char *line)
{
    char what[8], id[KL_ID_TEXT_BYTES];
    int pid, key, number;
    if (sscanf(line, "%7s %d %d %d %36s", what, &pid, &key, &number, id) != 5 || key < 0 || key >= KEYS ||
        number >= NUMBERS_MAX - 1) {
        test_fail(__FILE__, __LINE__, "a line says: %s", line);
    } else if (strcmp(what, "start") == 0) {
        take_start(campaign, pid, key, number, id);
    } else if (strcmp(what, "end") == 0) {
        take_end(campaign, key, number);
    } else if (strcmp(what, "fail") == 0) {
        campaign->runs_in[key] = 0;
    } else {
        for (int i = 0; i < KEYS; i++)
            if (campaign->runs_in[i] == pid)
                campaign->runs_in[i] = 0;
    }
}

/* Lines are written whole, so what ends in a newline is complete. */
static void read_on(struct campaign *campaign)
{
    char line[128];
    for (;;) {
        long at = ftell(campaign->reading);
        if (!fgets(line, sizeof line, campaign->reading) || !strchr(line, '\n')) {
            fseek(campaign->reading, at, SEEK_SET); /* and clears the end of file */
            return;
        }
        take_line(campaign, line);
    }
}

/* --- Producers --- */

/* A batch with a token is made again until it is known to be there. */
static void put_batch(struct campaign *campaign)
{
    static long calls;
    char keys[BATCH][16], payloads[BATCH][32], token[32];
    kl_put tasks[BATCH];
    for (int i = 0; i < BATCH; i++) {
        int key = (int)kl__random_below(&campaign->random, KEYS / 2);
        snprintf(keys[i], sizeof keys[i], "k%d", key);
        snprintf(payloads[i], sizeof payloads[i], "%d %d", key, campaign->next[key]++);
        tasks[i] = (kl_put){.key = kl_str(keys[i]), .payload = kl_str(payloads[i])};
    }
    snprintf(token, sizeof token, "batch %ld", ++calls);
    kl_rc rc = KL_EBUSY;
    while (rc != KL_OK && kl_rc_class(rc) == KL_CLASS_RETRY)
        rc = kl_queue_put(campaign->queue, tasks, BATCH, kl_str(token), NULL);
    if (rc != KL_OK)
        test_fail(__FILE__, __LINE__, "put: %s", kl_error_text());
    atomic_fetch_add(&campaign->put, BATCH);
}

/* A transaction of an application: its row and its task are there both or not at all. The row tells after a lost
 * reply. */
static void put_in_sql(struct campaign *campaign, PGconn **app)
{
    char sql[400];
    int key = KEYS / 2 + (int)kl__random_below(&campaign->random, KEYS / 2), number = campaign->next[key];
    snprintf(sql, sizeof sql,
             "BEGIN; INSERT INTO %s.ledger VALUES (%d, %d); SELECT %s.put('orders', '%d %d', key => 'k%d'); COMMIT",
             campaign->schema, key, number, campaign->schema, key, number, key);
    for (;;) {
        PGresult *rows = PQexec(*app, sql);
        bool done = PQresultStatus(rows) == PGRES_COMMAND_OK;
        const char *state = done ? "" : PQresultErrorField(rows, PG_DIAG_SQLSTATE);
        bool there = !done && state && strcmp(state, "23505") == 0; /* the row is there: so is its task */
        PQclear(rows);
        if (done || there)
            break;
        PQfinish(*app);
        *app = pg_server_connect();
    }
    PQclear(PQexec(*app, "ROLLBACK"));
    campaign->next[key]++;
    atomic_fetch_add(&campaign->put, 1);
}

/* Not too far ahead of what was run. */
static bool may_put(void *ctx)
{
    struct campaign *campaign = ctx;
    return atomic_load(&campaign->stops) || test_failed() || campaign->put - campaign->ended < AHEAD;
}

static void *produce(void *ctx)
{
    struct campaign *campaign = ctx;
    PGconn *app = pg_server_connect();
    while (!atomic_load(&campaign->stops) && !test_failed()) {
        put_batch(campaign);
        put_in_sql(campaign, &app);
        await_condition("workers keep up", may_put, campaign);
    }
    PQfinish(app);
    return NULL;
}

/* --- The campaign --- */

/* As the store's own thread does it, without waiting for anything to become old or large; and it may fail as there.
 * Each is a transaction of its own. */
static void clear_away(struct campaign *campaign)
{
    static const char *const steps[] = {"upkeep_segments(0, 0, 0)", "upkeep(1000, 5000, 1000000)", "upkeep_last(0)"};
    char sql[200];
    if (PQstatus(campaign->sweeper) != CONNECTION_OK) {
        PQfinish(campaign->sweeper);
        campaign->sweeper = pg_server_connect();
    }
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        snprintf(sql, sizeof sql, "SELECT %s.%s", campaign->schema, steps[i]);
        PQclear(PQexec(campaign->sweeper, sql));
    }
    campaign->cleared_at = atomic_load(&campaign->ended);
}

struct goal {
    struct campaign *campaign;
    long ended;
};

static bool has_come_to(void *ctx)
{
    const struct goal *goal = ctx;
    read_on(goal->campaign);
    if (atomic_load(&goal->campaign->ended) >= goal->campaign->cleared_at + CLEAR_EACH)
        clear_away(goal->campaign);
    return atomic_load(&goal->campaign->ended) >= goal->ended || test_failed();
}

static bool is_empty(void *ctx)
{
    const struct campaign *campaign = ctx;
    kl_arena arena = {0};
    kl_queue_info info;
    kl_rc rc = kl_queue_show(campaign->queue, &arena, &info);
    kl_arena_free(&arena);
    return rc == KL_OK && info.counts.ready + info.counts.due + info.counts.retry == 0;
}

static bool begin(struct campaign *campaign)
{
    char sql[200];
    kl_queue_opts opts = {.size = sizeof opts, .lease_ms = LEASE_MS};
    campaign->random = test_seed();
    bool good = workdir_make(campaign->dir) && pg_server_new_schema(campaign->url, campaign->schema) == KL_OK &&
                kl_store_open(campaign->url, NULL, &campaign->store) == KL_OK &&
                kl_queue_open(campaign->store, "orders", &opts, &campaign->queue) == KL_OK;
    snprintf(campaign->log, sizeof campaign->log, "%s/log", campaign->dir);
    if (good) {
        snprintf(sql, sizeof sql, "CREATE TABLE %s.ledger (key int, number int, PRIMARY KEY (key, number))",
                 campaign->schema);
        pg_server_run(sql);
        campaign->sweeper = pg_server_connect();
        campaign->reading = fopen(campaign->log, "w+");
    }
    good = good && campaign->reading && pthread_create(&campaign->producer, NULL, produce, campaign) == 0;
    if (!good)
        test_fail(__FILE__, __LINE__, "it does not begin: %s", kl_error_text());
    for (int i = 0; good && i < WORKERS; i++)
        campaign->workers[i] = spawn(campaign);
    return good;
}

static void strike(struct campaign *campaign, int number)
{
    char sql[200];
    int which = (int)kl__random_below(&campaign->random, WORKERS);
    kill_worker(campaign, which);
    campaign->workers[which] = spawn(campaign);
    if (number % 5 == 1)
        CHECK(pg_server_crash());
    clear_away(campaign);
    snprintf(sql, sizeof sql, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '%s'",
             campaign->schema);
    if (number % 5 == 3)
        pg_server_run(sql);
}

static void finish(struct campaign *campaign)
{
    for (int i = 0; i < WORKERS; i++)
        if (campaign->workers[i] > 0)
            kill_worker(campaign, i);
    fclose(campaign->reading);
    PQfinish(campaign->sweeper);
    kl_queue_close(campaign->queue);
    kl_store_close(campaign->store);
    workdir_remove(campaign->dir);
}

TEST(nothing_is_lost_or_out_of_order_when_workers_and_the_server_crash)
{
    static struct campaign campaign;
    const char *asked = getenv("KL_TEST_KILLS");
    int kills = asked ? atoi(asked) : KILLS;
    campaign = (struct campaign){.put = 0};
    REQUIRE(begin(&campaign));
    for (int i = 0; i < kills && !test_failed(); i++) {
        struct goal goal = {&campaign, atomic_load(&campaign.ended) + BETWEEN};
        await_condition("tasks are run between two strikes", has_come_to, &goal);
        strike(&campaign, i);
        if (asked && i % 10 == 9)
            printf("# %d killed, %ld tasks\n", i + 1, (long)atomic_load(&campaign.ended));
    }
    atomic_store(&campaign.stops, true);
    pthread_join(campaign.producer, NULL);
    await_condition("everything is run", has_come_to, &(struct goal){&campaign, atomic_load(&campaign.put)});
    await_condition("nothing waits any more", is_empty, &campaign);
    read_on(&campaign);
    for (int key = 0; key < KEYS; key++)
        CHECK_INT(campaign.first_open[key], campaign.next[key]);
    finish(&campaign);
}
