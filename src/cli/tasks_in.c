/* tasks_in.c - tasks from options, and lines of files. See tasks_in.h. */
#include "cli/tasks_in.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

enum { LINES_BYTES = 256 << 10 /* of a file read at a time */ };

static bool complain_memory(void) { return kl__fail_call(kl__fail_memory()) == KL_EXIT_OK; }

/* ---- From options ---- */

static bool fill_headers(const kl__texts *given, kl_arena *arena, kl_put *task)
{
    kl_header *headers = kl_arena_alloc(arena, (given->count + 1) * sizeof *headers);
    if (!headers)
        return complain_memory();
    for (size_t i = 0; i < given->count; i++) {
        const char *equals = strchr(given->items[i], '=');
        if (!equals || equals == given->items[i]) {
            kl__complain("--header is '%s'; write it as NAME=VALUE", given->items[i]);
            return false;
        }
        headers[i].name = (kl_bytes){given->items[i], (size_t)(equals - given->items[i])};
        headers[i].value = kl_str(equals + 1);
    }
    task->headers = headers;
    task->header_count = given->count;
    return true;
}

static bool fill_tags(const kl__texts *given, kl_arena *arena, kl_put *task)
{
    kl_bytes *tags = kl_arena_alloc(arena, (given->count + 1) * sizeof *tags);
    if (!tags)
        return complain_memory();
    for (size_t i = 0; i < given->count; i++)
        tags[i] = kl_str(given->items[i]);
    task->tags = tags;
    task->tag_count = given->count;
    return true;
}

bool kl__task_fill(const kl__task_opts *opts, kl_arena *arena, kl_put *ret_task)
{
    if (opts->in_ms && opts->at_ms) {
        kl__complain("--in and --at both say when; keep one of the two");
        return false;
    }
    *ret_task = (kl_put){
        .partition = opts->partition,
        .key = kl_str(opts->key),
        .kind = kl_str(opts->kind),
        .priority = opts->priority,
        .delay_ms = opts->at_ms < 0 ? -opts->at_ms : opts->in_ms,
        .due_ms = opts->at_ms > 0 ? opts->at_ms : 0,
        .attempts_max = opts->attempts,
        .timeout_ms = opts->timeout_ms,
        .unique = kl_str(opts->unique),
        .unique_ms = opts->unique_ms,
        .group = kl_str(opts->group),
        .traceparent = kl_str(opts->traceparent),
    };
    return fill_headers(&opts->headers, arena, ret_task) && fill_tags(&opts->tags, arena, ret_task);
}

/* ---- Lines ---- */

bool kl__lines_open(kl__lines *lines, const char *name)
{
    bool is_input = strcmp(name, "-") == 0;
    struct stat about;
    *lines = (kl__lines){.file = is_input ? STDIN_FILENO : open(name, O_RDONLY | O_CLOEXEC),
                         .name = is_input ? "the standard input" : name};
    if (lines->file < 0) {
        kl__complain("%s cannot be read (%s); name a file of lines of JSON, or - for the standard input", name,
                     strerror(errno));
        return false;
    }
    if (fstat(lines->file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0)
        lines->size = (uint64_t)about.st_size;
    return true;
}

/* Behind the end of the first line that is whole; NULL: none is. */
static char *end_of_line(kl__lines *lines)
{
    char *end =
        lines->to > lines->searched ? memchr(lines->buffer + lines->searched, '\n', lines->to - lines->searched) : NULL;
    lines->searched = end ? (size_t)(end - lines->buffer) : lines->to;
    return end ? end + 1 : NULL;
}

static bool make_room(kl__lines *lines)
{
    if (lines->from > 0)
        memmove(lines->buffer, lines->buffer + lines->from, lines->to - lines->from);
    lines->to -= lines->from;
    lines->searched -= lines->from;
    lines->from = 0;
    if (lines->to < lines->room)
        return true;
    size_t room = lines->room ? 2 * lines->room : LINES_BYTES;
    char *buffer = realloc(lines->buffer, room);
    if (!buffer)
        return false;
    lines->buffer = buffer;
    lines->room = room;
    return true;
}

/* Reads what is there, or waits for it. */
static void read_more(kl__lines *lines)
{
    ssize_t count = -1;
    errno = ENOMEM;
    if (make_room(lines)) {
        do
            count = read(lines->file, lines->buffer + lines->to, lines->room - lines->to);
        while (count < 0 && errno == EINTR);
    }
    lines->ended = count <= 0;
    lines->error = count < 0 ? errno : 0;
    lines->to += count > 0 ? (size_t)count : 0;
}

static bool is_blank(const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!strchr(" \t\r\n", line[i]) || !line[i])
            return false;
    return true;
}

/* The first `length` bytes of what is there are a line. */
static void pass(kl__lines *lines, size_t length)
{
    lines->from += length;
    lines->searched = lines->from;
    lines->number++;
    lines->bytes += length;
}

/* The length of the first line that is whole and not blank, with its end; 0: there is none. Blank ones are passed. */
static size_t whole_line(kl__lines *lines)
{
    char *end;
    while ((end = end_of_line(lines))) {
        size_t length = (size_t)(end - lines->buffer) - lines->from;
        if (!is_blank(lines->buffer + lines->from, length))
            return length;
        pass(lines, length);
    }
    return 0;
}

/* So much of a line is here already that it is refused, however it ends. */
static bool is_too_long(const kl__lines *lines) { return lines->to - lines->from > KL_LINE_BYTES_MAX; }

/* What is left of a line that was too long. */
static void skip_rest(kl__lines *lines)
{
    while (lines->skips) {
        const char *start = lines->buffer + lines->from, *end = memchr(start, '\n', lines->to - lines->from);
        size_t length = end ? (size_t)(end + 1 - start) : lines->to - lines->from;
        lines->from += length;
        lines->searched = lines->from;
        lines->bytes += length;
        lines->skips = !end && !lines->ended;
        if (lines->skips)
            read_more(lines);
    }
}

bool kl__lines_at_hand(kl__lines *lines, int64_t wait_ms)
{
    struct pollfd file = {.fd = lines->file, .events = POLLIN};
    while (!lines->ended && !lines->skips && whole_line(lines) == 0 && !is_too_long(lines)) {
        if (poll(&file, 1, (int)wait_ms) == 0)
            return false;
        read_more(lines);
    }
    return true;
}

int kl__lines_next(kl__lines *lines, kl_bytes *ret_line)
{
    size_t length;
    skip_rest(lines);
    while ((length = whole_line(lines)) == 0 && !lines->ended && !is_too_long(lines))
        read_more(lines);
    if (lines->error) {
        kl_rc rc = kl__fail(KL_ESYSTEM, "%s cannot be read further than line %llu (%s)", lines->name,
                            (unsigned long long)lines->number, strerror(lines->error));
        return kl__fail_call(rc) == KL_EXIT_OK ? 0 : -1;
    }
    lines->skips = length == 0 && !lines->ended;
    length = length ? length : lines->to - lines->from; /* the last line may have no end */
    const char *line = lines->buffer + lines->from;
    if (is_blank(line, length))
        return 0;
    pass(lines, length);
    while (length > 0 && strchr("\r\n", line[length - 1]) && line[length - 1])
        length--;
    *ret_line = (kl_bytes){line, length};
    return 1;
}

void kl__lines_close(kl__lines *lines)
{
    if (lines->file > STDIN_FILENO)
        close(lines->file);
    free(lines->buffer);
}

bool kl__payload_read(kl_arena *arena, kl_bytes *ret_payload)
{
    char *buffer = kl_arena_alloc(arena, KL_PAYLOAD_BYTES_MAX + 1);
    if (!buffer)
        return complain_memory();
    size_t length = fread(buffer, 1, KL_PAYLOAD_BYTES_MAX + 1, stdin);
    if (ferror(stdin)) {
        kl__complain("the standard input cannot be read (%s)", strerror(errno));
        return false;
    }
    if (length > KL_PAYLOAD_BYTES_MAX) {
        kl__complain("the standard input has more than %u bytes, which is the most that a payload may have; store it "
                     "elsewhere and push where it is",
                     KL_PAYLOAD_BYTES_MAX);
        return false;
    }
    *ret_payload = (kl_bytes){buffer, length};
    return true;
}
