/* errors.c - complaints for people and for machines, and the exit status that goes with a failed call. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/output.h"
#include "queue/json.h"

enum { SENTENCE_BYTES = 8192 };

static bool in_json;

void kl__complain_in_json(bool json) { in_json = json; }

/* Line by line: what it names may hold any bytes. */
static void print_plain(const char *sentence)
{
    kl_arena arena = {0};
    fputs("keyline: ", stderr);
    for (bool more = true; more;) {
        size_t length = strcspn(sentence, "\n");
        const char *shown = kl__out_harmless((kl_bytes){sentence, length}, &arena);
        fprintf(stderr, "%s\n", shown ? shown : "(out of memory)");
        more = sentence[length] != '\0';
        sentence += length + more;
    }
    kl_arena_free(&arena);
}

/* {"error": {"code": ..., "exit": ..., "text": ...}} on a line. */
static void print_json(const char *code, int status, const char *sentence)
{
    json_t *error = kl__json_object(), *whole = kl__json_object();
    bool made = kl__json_set_text(error, "code", code) && kl__json_set_int(error, "exit", status) &&
                kl__json_set_bytes(error, "text", kl_str(sentence));
    made = kl__json_set(whole, "error", error) && made;
    if (!made || json_dumpf(whole, stderr, JSON_COMPACT) != 0)
        print_plain(sentence);
    else
        fputc('\n', stderr);
    json_decref(whole);
}

void kl__complain(const char *format, ...)
{
    char sentence[SENTENCE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    if (in_json)
        print_json("USAGE", KL_EXIT_USAGE, sentence);
    else
        print_plain(sentence);
}

void kl__complain_of(kl_rc rc, int status, const char *sentence)
{
    if (in_json)
        print_json(kl_rc_name(rc), status, sentence);
    else
        print_plain(sentence);
}

int kl__exit_of(kl_rc rc)
{
    if (rc == KL_OK)
        return KL_EXIT_OK;
    if (rc == KL_ENOTFOUND)
        return KL_EXIT_NOT_FOUND;
    if (rc == KL_ECONFLICT || rc == KL_EMISMATCH)
        return KL_EXIT_CONFLICT;
    if (rc == KL_ETIMEDOUT || kl_rc_class(rc) == KL_CLASS_RETRY)
        return KL_EXIT_AGAIN;
    return KL_EXIT_FAILURE;
}

int kl__fail_call(kl_rc rc)
{
    int status = kl__exit_of(rc);
    if (status != KL_EXIT_OK)
        kl__complain_of(rc, status, kl_error_text());
    return status;
}

int kl__fail_given(kl_rc rc)
{
    if (rc != KL_EINVAL)
        return kl__fail_call(rc);
    kl__complain_of(rc, KL_EXIT_USAGE, kl_error_text());
    return KL_EXIT_USAGE;
}
