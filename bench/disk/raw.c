/* raw.c - the limit: a bare loop that writes as many bytes as Keyline does and calls fdatasync as often.
 *
 * The file was written full once and is written over from the start when its end is reached, like a recycled segment:
 * only data go to the disk, and no change of size. With --grow=1 it is a file that becomes longer, like a plain log. */
#include "bench.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES = 64 << 20, CHUNK_BYTES = 1 << 20 };

static const struct settings *args;
static int fd = -1;
static off_t offset;
static char *bytes; /* of the larger of both writes */

static void write_all(const char *from, size_t count)
{
    if (!args->grow && offset + (off_t)count > FILE_BYTES)
        offset = 0;
    while (count) {
        ssize_t written = pwrite(fd, from, count, offset);
        MUST(written > 0);
        from += written;
        offset += written;
        count -= (size_t)written;
    }
}

static void make_full(void)
{
    for (offset = 0; offset < FILE_BYTES;)
        write_all(bytes, CHUNK_BYTES);
    MUST(fsync(fd) == 0);
    offset = 0;
}

static void open_raw(const struct settings *settings)
{
    size_t most = CHUNK_BYTES;
    args = settings;
    MUST_SAYING(args->append_bytes && args->settle_bytes, "give --append-bytes and --settle-bytes");
    if ((size_t)args->append_bytes > most)
        most = (size_t)args->append_bytes;
    if ((size_t)args->settle_bytes > most)
        most = (size_t)args->settle_bytes;
    MUST(bytes = malloc(most));
    for (size_t i = 0; i < most; i++)
        bytes[i] = (char)payload[i % sizeof payload];

    MUST((fd = open(path_in(settings, "raw"), O_RDWR | O_CREAT, 0666)) >= 0);
    struct stat status;
    MUST(fstat(fd, &status) == 0);
    if (args->grow) {
        MUST(ftruncate(fd, 0) == 0 && fsync(fd) == 0);
    } else if (status.st_size < FILE_BYTES) {
        make_full();
    }
}

static void write_and_sync(long count)
{
    write_all(bytes, (size_t)count);
    MUST(fdatasync(fd) == 0);
}

static void append_raw(int pair, size_t count)
{
    (void)pair, (void)count;
    write_and_sync(args->append_bytes);
}

static void settle_raw(int pair, size_t count)
{
    (void)pair, (void)count;
    write_and_sync(args->settle_bytes);
}

static void close_raw(void)
{
    MUST(close(fd) == 0);
    free(bytes);
}

/* Appends alone. --append-bytes is a group's. */
static void run_appends(const struct settings *settings)
{
    int64_t tasks = 0, begin, end;
    open_raw(settings);
    for (begin = end = now_ns(); end - begin < settings->ms * 1000000; end = now_ns()) {
        append_raw(0, 0);
        tasks += settings->group;
    }
    printf("tasks/s %.0f\n", (double)tasks * 1e9 / (double)(end - begin));
    close_raw();
}

/* One append at a time, each on the clock. */
static void run_one(const struct settings *settings)
{
    enum { SAMPLES_MAX = 1 << 20 };
    int64_t *ns = malloc(SAMPLES_MAX * sizeof *ns), end;
    size_t count = 0;
    MUST(ns);
    open_raw(settings);
    for (end = now_ns() + settings->ms * 1000000; count < SAMPLES_MAX && now_ns() < end;) {
        int64_t begin = now_ns();
        append_raw(0, 1);
        ns[count++] = now_ns() - begin;
    }
    print_percentiles(ns, count);
    printf("\n");
    close_raw();
    free(ns);
}

static const struct mode modes[] = {{"appends", run_appends}, {"one", run_one}, {0}};

const struct side side = {.name = "raw",
                          .open = open_raw,
                          .append = append_raw,
                          .settle = settle_raw,
                          .close = close_raw,
                          .modes = modes,
                          .takes_turns = true};
