/* tasks_in.c - tasks from options, and lines of files. See tasks_in.h. */
#include "cli/tasks_in.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

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
        .delay_ms = opts->in_ms,
        .due_ms = opts->at_ms,
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
    *lines = (kl__lines){.file = is_input ? stdin : fopen(name, "re"), .name = is_input ? "the standard input" : name};
    if (!lines->file) {
        kl__complain("%s cannot be read (%s); name a file of lines of JSON, or - for the standard input", name,
                     strerror(errno));
        return false;
    }
    if (fstat(fileno(lines->file), &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0)
        lines->size = (uint64_t)about.st_size;
    return true;
}

static bool is_blank(const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!strchr(" \t\r\n", line[i]) || !line[i])
            return false;
    return true;
}

int kl__lines_next(kl__lines *lines, kl_bytes *ret_line)
{
    for (;;) {
        errno = 0;
        ssize_t length = getline(&lines->line, &lines->room, lines->file);
        if (length < 0 && feof(lines->file))
            return 0;
        if (length < 0) {
            kl__complain("%s cannot be read further than line %llu (%s)", lines->name,
                         (unsigned long long)lines->number, strerror(errno));
            return -1;
        }
        lines->number++;
        lines->bytes += (uint64_t)length;
        if (is_blank(lines->line, (size_t)length))
            continue;
        while (length > 0 && strchr("\r\n", lines->line[length - 1]) && lines->line[length - 1])
            length--;
        *ret_line = (kl_bytes){lines->line, (size_t)length};
        return 1;
    }
}

void kl__lines_close(kl__lines *lines)
{
    if (lines->file && lines->file != stdin)
        fclose(lines->file);
    free(lines->line);
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
