/* bench.c - the program bench-postgres: one side of the comparison, once. bench/postgres/run makes them in turns.
 *
 *     bench-postgres keyline|sql|table URL GROUP MS [MOST [RATE [PARTITIONS [PROCESSES [HANDLERS [LEASE_MS
 *     [KEPT]]]]]]] */
#include <sys/mman.h>

#include "bench.h"

const char payload[PAYLOAD_BYTES + 1] =
    "01234567 a task of two hundred bytes, as they are usual: some JSON, a few names and "
    "numbers, an address, something that somebody wants to be done soon and then "
    "never hears of again, we hope. ####";

/* --- Load --- */

/* Where the log of the server ends, in bytes. */
static double wal_end(const struct load *load)
{
    PGconn *conn = PQconnectdb(load->settings->url);
    PGresult *rows = PQexec(conn, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')");
    MUST(PQresultStatus(rows) == PGRES_TUPLES_OK, PQerrorMessage(conn));
    double bytes = atof(PQgetvalue(rows, 0, 0));
    PQclear(rows);
    PQfinish(conn);
    return bytes;
}

void begin(struct load *load, long ms)
{
    load->wal = wal_end(load);
    atomic_store(&load->put, 0);
    atomic_store(&load->run, 0);
    atomic_store(&load->picked_up.count, 0);
    atomic_store(&load->settled.count, 0);
    load->ms = ms;
    load->began_ns = now_ns();
}

int goes_on(struct load *load)
{
    const struct settings *settings = load->settings;
    int64_t spent_ns = now_ns() - load->began_ns;
    long put = atomic_load(&load->put);
    if (spent_ns >= load->ms * 1000000 || (settings->most > 0 && put >= settings->most))
        return 0;
    if (settings->rate > 0) {
        int64_t due_ns = put * 1000000000 / settings->rate;
        struct timespec pause = {0, due_ns > spent_ns ? due_ns - spent_ns : 0};
        if (pause.tv_nsec >= 1000000000)
            pause.tv_nsec = 999999999;
        nanosleep(&pause, NULL);
    }
    return 1;
}

void make_key(char key[KEY_BYTES + 1], unsigned long number)
{
    snprintf(key, KEY_BYTES + 1, "customer-%03lu", number % KEYS % 1000);
}

void stamp(char bytes[PAYLOAD_BYTES])
{
    int64_t now = now_ns();
    memcpy(bytes, payload, PAYLOAD_BYTES);
    memcpy(bytes, &now, sizeof now);
}

int64_t stamp_of(const void *bytes)
{
    int64_t put_ns;
    memcpy(&put_ns, bytes, sizeof put_ns);
    return put_ns;
}

void note_latency(struct latencies *latencies, int64_t put_ns)
{
    long at = atomic_fetch_add(&latencies->count, 1);
    latencies->ns[at % LATENCIES_MAX] = now_ns() - put_ns;
}

/* --- Figures --- */

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void print_latencies(const char *name, struct latencies *latencies)
{
    static const double parts[] = {0.5, 0.95, 0.99, 1};
    static const char *const names[] = {"p50", "p95", "p99", "max"};
    long noted = atomic_load(&latencies->count);
    size_t count = noted < LATENCIES_MAX ? (size_t)noted : LATENCIES_MAX;
    qsort(latencies->ns, count, sizeof latencies->ns[0], by_value);
    for (int i = 0; i < 4; i++)
        printf(" %s%s_ms %.2f", name, names[i],
               count ? (double)latencies->ns[(size_t)((double)(count - 1) * parts[i])] / 1e6 : 0);
}

void await_run(struct load *load)
{
    while (atomic_load(&load->run) < atomic_load(&load->put))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

void finish(struct load *load, int64_t put_ns)
{
    await_run(load);
    int64_t all_ns = now_ns() - load->began_ns;
    double wal = wal_end(load) - load->wal;
    long put = atomic_load(&load->put);
    printf("tasks %ld put_s %.0f all_s %.0f", put, (double)put * 1e9 / (double)put_ns,
           (double)put * 1e9 / (double)all_ns);
    print_latencies("", &load->picked_up);
    print_latencies("end_", &load->settled);
    printf(" wal %.1f\n", wal / (double)put);
}

static long number(int argc, char **argv, int at, long otherwise) { return argc > at ? atol(argv[at]) : otherwise; }

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr,
                "usage: bench-postgres keyline|sql|table URL GROUP MS [MOST [RATE [PARTITIONS [PROCESSES [HANDLERS"
                " [LEASE_MS [KEPT]]]]]]]\n");
        return 2;
    }
    struct settings settings = {.url = argv[2],
                                .group = number(argc, argv, 3, 0),
                                .ms = number(argc, argv, 4, 0),
                                .most = number(argc, argv, 5, 0),
                                .rate = number(argc, argv, 6, 0),
                                .partitions = number(argc, argv, 7, 1),
                                .processes = number(argc, argv, 8, 0),
                                .handlers = number(argc, argv, 9, CONSUMERS),
                                .lease_ms = number(argc, argv, 10, 0),
                                .kept = (enum kept)number(argc, argv, 11, KEPT_NOT)};
    struct load *load = mmap(NULL, sizeof *load, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(load != MAP_FAILED, "memory");
    MUST(settings.group >= 1 && settings.group <= GROUP_MAX, "a group has 1 to 10000 tasks");
    MUST(settings.processes >= 0 && settings.processes <= PROCESSES_MAX, "there are 0 to 16 processes");
    load->settings = &settings;
    snprintf(settings.queue, sizeof settings.queue, "bench%ld_%ld_%d", settings.partitions, settings.lease_ms,
             (int)settings.kept);
    if (strcmp(argv[1], "sql") == 0)
        snprintf(settings.put_sql, sizeof settings.put_sql, "SELECT keyline.put_many('%s', $2, keys => $1)",
                 settings.queue);
    if (strcmp(argv[1], "table") == 0)
        run_table(load);
    else
        run_keyline(load);
    return 0;
}
