/* base.c - assertions, the thread's last error, and allocation. */
#include "base/base.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ERROR_TEXT_BYTES = 512 };

static _Thread_local char error_text[ERROR_TEXT_BYTES];
static _Thread_local kl__say_fn *say_error; /* NULL: the text is there */
static _Thread_local alignas(max_align_t) char error_facts[KL_FACTS_BYTES_MAX];

/* Tests fail the n-th allocation through these two; in production the countdown stays 0 and costs one relaxed load. */
static _Atomic(int64_t) alloc_countdown;
static _Atomic(uint64_t) alloc_count;
static _Atomic(bool) alloc_watched, alloc_refused;

struct rc_row {
    kl_rc rc;
    kl_class class;
    const char *name;
    const char *text;
};

static const struct rc_row rc_rows[] = {
#define RC_ROW(code, value, text, class_) {code, class_, #code, text},
    KL_RC_TABLE(RC_ROW)
#undef RC_ROW
};

static const struct rc_row *find_row(kl_rc rc)
{
    static const struct rc_row unknown = {KL_ESYSTEM, KL_CLASS_FATAL, "unknown", "an unknown result code"};
    for (size_t i = 0; i < sizeof rc_rows / sizeof rc_rows[0]; i++)
        if (rc_rows[i].rc == rc)
            return &rc_rows[i];
    return &unknown;
}

const char *kl_rc_name(kl_rc rc) { return find_row(rc)->name; }
const char *kl_rc_text(kl_rc rc) { return find_row(rc)->text; }
kl_class kl_rc_class(kl_rc rc) { return find_row(rc)->class; }

const char *kl_error_text(void)
{
    kl__say_fn *say = say_error;
    say_error = NULL;
    if (say)
        say(error_facts, error_text, sizeof error_text);
    return error_text;
}

kl_rc kl__fail(kl_rc rc, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error_text, sizeof error_text, format, arguments);
    va_end(arguments);
    say_error = NULL;
    return rc;
}

void *kl__fail_facts(kl__say_fn *say)
{
    say_error = say;
    return error_facts;
}

_Noreturn void kl__assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "keyline: %s:%d: %s does not hold: a call that is not allowed here, or a defect of the library\n",
            file, line, condition);
    abort();
}

kl_rc kl__fail_memory(void) { return kl__fail(KL_ENOMEM, "out of memory; nothing was changed"); }

static bool refuse(void)
{
    if (KL_LIKELY(!atomic_load_explicit(&alloc_watched, memory_order_relaxed)))
        return false;
    atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
    return atomic_fetch_sub_explicit(&alloc_countdown, 1, memory_order_relaxed) == 1 ||
           atomic_load_explicit(&alloc_refused, memory_order_relaxed);
}

uint64_t kl__alloc_fail_at(uint64_t n)
{
    atomic_store(&alloc_countdown, (int64_t)n);
    atomic_store(&alloc_watched, true);
    return atomic_exchange(&alloc_count, 0);
}

void kl__alloc_fail_all(bool fail)
{
    atomic_store(&alloc_refused, fail);
    atomic_store(&alloc_watched, true);
}

void *kl__alloc(size_t size) { return refuse() ? NULL : malloc(size); }

void *kl__alloc_zeroed(size_t count, size_t size) { return refuse() ? NULL : calloc(count, size); }

void *kl__alloc_aligned(size_t alignment, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || __builtin_add_overflow(bytes, alignment - 1, &bytes))
        return NULL;
    if (refuse())
        return NULL;
    bytes &= ~(alignment - 1);
    void *memory = aligned_alloc(alignment, bytes);
    if (memory)
        memset(memory, 0, bytes);
    return memory;
}

void kl__free(void *memory) { free(memory); }

void kl__free_large(void *memory, size_t bytes)
{
    enum { FEW_PAGES = 16 };
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)memory + page - 1) / page * page, end = ((uintptr_t)memory + bytes) / page * page;
    if (bytes >= FEW_PAGES * page)
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
    free(memory);
}

void *kl__grow(void *items, size_t count, size_t *room, size_t item_bytes)
{
    enum { ROOM_MIN = 16 };
    if (count < *room)
        return items;
    size_t larger = *room ? *room * 2 : ROOM_MIN;
    void *grown = kl__alloc_zeroed(larger, item_bytes);
    if (!grown)
        return NULL;
    if (count)
        memcpy(grown, items, count * item_bytes);
    kl__free(items);
    *room = larger;
    return grown;
}
