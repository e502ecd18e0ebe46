/* fuzz_envelope.c - what a task carries: what can be read is written and read again the same, and can be repeated. */
#include "fuzz.h"
#include "queue/envelope.h"

static bool equal(kl_bytes a, kl_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static kl_bytes encode(const kl_task_extra *extra, kl_arena *arena)
{
    kl_bytes bytes;
    HOLDS(kl__envelope_encode(extra, arena, &bytes) == KL_OK);
    return bytes;
}

static void check_repeat(kl_bytes bytes, const kl_task_extra *extra, kl_arena *arena)
{
    const kl_task_id origin = {{1, 2, 3}};
    kl_task_extra again, expected = *extra;
    kl_bytes repeat;
    HOLDS(kl__envelope_repeat(bytes, &origin, KL_LEAVES_NOTHING, arena, &repeat) == KL_OK &&
          repeat.len <= KL_HEADERS_BYTES_MAX);
    HOLDS(kl__envelope_decode(repeat, arena, &again) == KL_OK);
    HOLDS(memcmp(&again.origin, &origin, sizeof origin) == 0);
    expected.origin = origin;
    HOLDS(equal(encode(&expected, arena), encode(&again, arena)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kl_arena arena = {0};
    kl_task_extra extra, again;
    char *copy = fuzz_copy(data, size);
    kl_bytes bytes = {copy, size};
    if (kl__envelope_decode(bytes, &arena, &extra) == KL_OK) {
        kl_bytes first = encode(&extra, &arena);
        HOLDS(first.len <= size && kl__envelope_decode(first, &arena, &again) == KL_OK);
        HOLDS(equal(first, encode(&again, &arena)));
        check_repeat(bytes, &extra, &arena);
    } else {
        HOLDS(*kl_error_text() != 0);
    }
    kl_arena_free(&arena);
    free(copy);
    return 0;
}
