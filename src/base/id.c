/* id.c - task ids, and the generator that makes them.
 *
 * The 122 payload bits, and where they stand in the UUID. A version nibble follows bit 48, variant bits follow bit 60:
 *
 *     bytes 0..5            6..7            8..15
 *     |      48 bits      | 8 | 12 bits | 10 |                62 bits                |
 *     L=1  shard 4   ms 44  .  sequence 12   .  sequence 12 | lane 24 | random 26
 *     L=2  shard 8   ms 40  .  ms 4, seq 8   .      "            "         "
 *     L=3  shard 12  ms 36  .  ms 8, seq 4   .      "            "         "
 *     L=4  shard 16  ms 32  .  ms 12         .      "            "         "
 *
 * So for every L the first 60 bits are shard, ms and what the sequence has above its low 12 bits, and the last 62 bits
 * are the same.
 *
 * The generator keeps, per slot, the last (ms, counter) it gave out, as one number: ms * 2^counter_bits + counter. The
 * next one is that plus one, or the clock's if that is later, set by compare-and-set.
 *
 * G1  A slot's number only grows. A clock that stalls or steps back merely stops pushing it.
 * G2  A counter that runs over carries into the ms: borrowing from the next millisecond needs no code.
 * G3  A shard always uses the same slot, so its ids strictly increase; shards that share a slot only leave gaps.
 *
 * Measured on one core of a 2-core machine: clock_gettime(CLOCK_REALTIME) alone takes 28 ns, more than the rest of an
 * id, and CLOCK_REALTIME_COARSE 7 ns; ids need no more than its 4 ms, because the counter orders what it cannot tell
 * apart. One slot for all shards was rejected: with L = 4 the counter has 12 bits, so the whole process would borrow
 * from the future beyond 4 M ids/s, and all threads would meet on one cache line. A slot per shard would be 4 MiB of
 * cache lines with L = 4 for no more speed; 256 slots are 16 KiB and give 256 times those 4 M ids/s.
 *
 * Each new millisecond starts its counter at a random place in the lower half (as RFC 9562 section 6.2 has it). Were
 * it to start at 0, two producers putting a keyless task a millisecond into one shard would differ in the 26 random
 * bits only, and a hundred of them would make a duplicate every few minutes. */
#include "keyline/id.h"

#include <endian.h>
#include <stdatomic.h>
#include <time.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/layout.h"
#include "base/random.h"

enum {
    MS_BITS = 44,
    HEAD_BITS = 60, /* before the variant, without the version */
    SEQUENCE_LOW_BITS = 12,
    LANE_BITS = 24,
    RANDOM_BITS = 26,
    COUNTER_BITS_MAX = 64 - MS_BITS, /* 2^20 a millisecond is already a billion ids a second */
    SLOTS_MAX = 256,
};

_Static_assert(HEAD_BITS + SEQUENCE_LOW_BITS + LANE_BITS + RANDOM_BITS == 122, "a UUID has 128 - 4 - 2 bits to give");
_Static_assert(SEQUENCE_LOW_BITS + LANE_BITS + RANDOM_BITS == 62, "the low half of a UUID has 62 bits to give");
_Static_assert(sizeof(kl_task_id) == 16, "an id is its bytes");
_Static_assert(KL_LANE_MAX == (1u << LANE_BITS) - 1 && KL_ID_RANDOM_MAX == (1u << RANDOM_BITS) - 1, "limits fit");

/* One cache line, so that threads busy in different shards do not slow each other down. */
struct slot {
    alignas(KL_CACHE_LINE) _Atomic(uint64_t) last; /* (ms, counter) of the newest id */
    uint64_t seed;
};

struct kl_idgen {
    kl_layout layout;
    uint32_t shards;
    uint32_t slot_mask;
    uint32_t counter_bits;
    uint32_t spare_bits; /* of the sequence, below the counter; filled at random */
    uint64_t end;        /* numbers stay below this, the start of the last ms, so that +1 never wraps */
    kl_now_ms_fn *now_ms;
    void *now_ctx;
    struct slot slots[];
};

static uint32_t sequence_bits(const kl_layout *layout) { return 28 - kl__shard_bits(layout); }

static uint64_t low_bits(uint64_t value, uint32_t bits) { return value & ((UINT64_C(1) << bits) - 1); }

static void store_half(uint8_t *bytes, uint64_t half)
{
    half = htobe64(half);
    memcpy(bytes, &half, sizeof half);
}

static uint64_t load_half(const uint8_t *bytes)
{
    uint64_t half;
    memcpy(&half, bytes, sizeof half);
    return be64toh(half);
}

/* Inline, or else the parts of each new id take a way round through memory: 17 ns instead of 6 in a batch. */
static inline kl_task_id pack(uint32_t shard_bits, kl_id_parts parts)
{
    uint64_t head = (uint64_t)parts.shard << (HEAD_BITS - shard_bits) |
                    (uint64_t)parts.ms << (HEAD_BITS - shard_bits - MS_BITS) | parts.sequence >> SEQUENCE_LOW_BITS;
    uint64_t tail = low_bits(parts.sequence, SEQUENCE_LOW_BITS) << (LANE_BITS + RANDOM_BITS) |
                    (uint64_t)parts.lane << RANDOM_BITS | parts.random;
    kl_task_id id = {{0}};
    store_half(id.bytes, head >> 12 << 16 | UINT64_C(0x8000) | low_bits(head, 12));
    store_half(id.bytes + 8, UINT64_C(2) << 62 | tail);
    return id;
}

kl_rc kl_id_pack(const kl_layout *layout, const kl_id_parts *parts, kl_task_id *ret_id)
{
    const char *part = NULL;
    if (parts->shard >= kl_layout_shards(layout))
        part = "shard";
    else if (parts->ms < 0 || parts->ms > KL_ID_MS_MAX)
        part = "ms";
    else if (parts->sequence >> sequence_bits(layout))
        part = "sequence";
    else if (parts->lane > KL_LANE_MAX)
        part = "lane";
    else if (parts->random > KL_ID_RANDOM_MAX)
        part = "random";
    if (part)
        return kl__fail(KL_EINVAL,
                        "the id's %s is out of range: with %u digits of shard an id has %u bits of shard, 44 of ms, %u "
                        "of sequence, 24 of lane and 26 of random",
                        part, layout->shard_prefix_len, kl__shard_bits(layout), sequence_bits(layout));
    *ret_id = pack(kl__shard_bits(layout), *parts);
    return KL_OK;
}

/* The first 60 payload bits. */
static uint64_t head_of(const kl_task_id *id)
{
    uint64_t high = load_half(id->bytes);
    return high >> 16 << 12 | low_bits(high, 12);
}

uint32_t kl_id_shard(const kl_layout *layout, const kl_task_id *id)
{
    KL_ASSERT(kl__layout_valid(layout));
    return (uint32_t)(head_of(id) >> (HEAD_BITS - kl__shard_bits(layout)));
}

int64_t kl_id_ms(const kl_layout *layout, const kl_task_id *id)
{
    KL_ASSERT(kl__layout_valid(layout));
    return (int64_t)low_bits(head_of(id) >> (HEAD_BITS - kl__shard_bits(layout) - MS_BITS), MS_BITS);
}

uint32_t kl_id_sequence(const kl_layout *layout, const kl_task_id *id)
{
    KL_ASSERT(kl__layout_valid(layout));
    uint64_t above = low_bits(head_of(id), sequence_bits(layout) - SEQUENCE_LOW_BITS);
    uint64_t below = low_bits(load_half(id->bytes + 8) >> (LANE_BITS + RANDOM_BITS), SEQUENCE_LOW_BITS);
    return (uint32_t)(above << SEQUENCE_LOW_BITS | below);
}

uint32_t kl_id_lane(const kl_task_id *id)
{
    return (uint32_t)low_bits(load_half(id->bytes + 8) >> RANDOM_BITS, LANE_BITS);
}

kl_id_parts kl_id_unpack(const kl_layout *layout, const kl_task_id *id)
{
    return (kl_id_parts){
        .shard = kl_id_shard(layout, id),
        .ms = kl_id_ms(layout, id),
        .sequence = kl_id_sequence(layout, id),
        .lane = kl_id_lane(id),
        .random = (uint32_t)low_bits(load_half(id->bytes + 8), RANDOM_BITS),
    };
}

int kl_id_compare(const kl_task_id *a, const kl_task_id *b) { return memcmp(a->bytes, b->bytes, sizeof a->bytes); }

/* Text is 8-4-4-4-12 digits: a hyphen precedes these bytes. */
static bool hyphen_before(size_t byte) { return byte == 4 || byte == 6 || byte == 8 || byte == 10; }

void kl_id_print(const kl_task_id *id, char ret_text[KL_ID_TEXT_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    char *out = ret_text;
    for (size_t i = 0; i < sizeof id->bytes; i++) {
        if (hyphen_before(i))
            *out++ = '-';
        *out++ = digits[id->bytes[i] >> 4];
        *out++ = digits[id->bytes[i] & 15];
    }
    *out = '\0';
}

static kl_rc fail_text(kl_bytes text, const char *why)
{
    char quoted[KL_QUOTE_BYTES];
    return kl__fail(KL_EINVAL, "%s is not a task id: %s", kl__quote(text, quoted), why);
}

static kl_rc check_kind(kl_bytes text, const kl_task_id *id)
{
    if (id->bytes[6] >> 4 != 8)
        return fail_text(text, "it is a UUID of another version; the 15th character of a task id is 8");
    if (id->bytes[8] >> 6 != 2)
        return fail_text(text, "it is a UUID of another variant; the 20th character of a task id is 8, 9, a or b");
    return KL_OK;
}

kl_rc kl_id_parse(kl_bytes text, kl_task_id *ret_id)
{
    if (text.len != KL_ID_TEXT_BYTES - 1)
        return fail_text(text, "write its 36 characters, as in 3019e0c2-a1b4-8c55-8f00-12ab34cd56ef");
    kl_task_id id;
    const char *in = text.data;
    for (size_t i = 0; i < sizeof id.bytes; i++, in += 2) {
        if (hyphen_before(i) && *in++ != '-')
            return fail_text(text, "write hyphens as in 3019e0c2-a1b4-8c55-8f00-12ab34cd56ef, and only those");
        int high = kl__hex_digit(in[0]), low = kl__hex_digit(in[1]);
        if (high < 0 || low < 0)
            return fail_text(text, "between its hyphens write only the digits 0-9 and a-f");
        id.bytes[i] = (uint8_t)(high << 4 | low);
    }
    kl_rc rc = check_kind(text, &id);
    if (rc == KL_OK)
        *ret_id = id;
    return rc;
}

static int64_t coarse_wall_ms(void *ctx)
{
    (void)ctx;
#ifdef CLOCK_REALTIME_COARSE
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
#else
    return kl__wall_ms();
#endif
}

static kl_idgen *allocate(uint32_t slots)
{
    return kl__alloc_aligned(alignof(kl_idgen), 1, sizeof(kl_idgen) + slots * sizeof(struct slot));
}

static void set_up(kl_idgen *idgen, const kl_layout *layout, uint32_t slots, const kl_idgen_opts *opts)
{
    uint32_t bits = sequence_bits(layout);
    idgen->layout = *layout;
    idgen->shards = kl_layout_shards(layout);
    idgen->slot_mask = slots - 1;
    idgen->counter_bits = bits < COUNTER_BITS_MAX ? bits : COUNTER_BITS_MAX;
    idgen->spare_bits = bits - idgen->counter_bits;
    idgen->end = (uint64_t)KL_ID_MS_MAX << idgen->counter_bits;
    idgen->now_ms = opts->now_ms ? opts->now_ms : coarse_wall_ms;
    idgen->now_ctx = opts->now_ctx;
    uint64_t seed = opts->seed ? opts->seed : kl__random_seed();
    for (uint32_t i = 0; i < slots; i++) {
        atomic_init(&idgen->slots[i].last, 0);
        idgen->slots[i].seed = kl__random_next(&seed);
    }
}

kl_rc kl_idgen_open(const kl_layout *layout, const kl_idgen_opts *opts, kl_idgen **ret_idgen)
{
    kl_idgen_opts known = {0};
    if (opts && (opts->size < sizeof opts->size || opts->size > sizeof known))
        return kl__fail(KL_EINVAL, "kl_idgen_opts.size is %zu: start from {.size = sizeof(kl_idgen_opts)}", opts->size);
    if (opts)
        memcpy(&known, opts, opts->size);
    uint32_t shards = kl_layout_shards(layout);
    uint32_t slots = shards < SLOTS_MAX ? shards : SLOTS_MAX;
    kl_idgen *idgen = allocate(slots);
    if (!idgen)
        return kl__fail_memory();
    set_up(idgen, layout, slots, &known);
    *ret_idgen = idgen;
    return KL_OK;
}

void kl_idgen_close(kl_idgen *idgen) { kl__free(idgen); }

/* Well mixed bits that depend on the slot's seed and a number only, so that threads share no random state. */
static uint64_t scramble(const struct slot *slot, uint64_t number)
{
    uint64_t state = slot->seed ^ number;
    return kl__random_next(&state);
}

/* Where the numbers of this millisecond start: somewhere in the lower half of its counter. */
static uint64_t first_number(const kl_idgen *idgen, const struct slot *slot, uint64_t ms)
{
    return ms << idgen->counter_bits | low_bits(scramble(slot, ms), idgen->counter_bits - 1);
}

static uint64_t clock_ms(const kl_idgen *idgen)
{
    int64_t ms = idgen->now_ms(idgen->now_ctx);
    if (ms < 0)
        return 0;
    return ms < KL_ID_MS_MAX ? (uint64_t)ms : (uint64_t)KL_ID_MS_MAX;
}

/* Takes count numbers of the slot; false when time has run out. Relaxed order is enough: all changes of one slot are
 * ordered anyway, also as seen by a thread that was told of an earlier id. */
static bool take_numbers(const kl_idgen *idgen, struct slot *slot, size_t count, uint64_t *ret_first)
{
    uint64_t ms = clock_ms(idgen), first;
    uint64_t last = atomic_load_explicit(&slot->last, memory_order_relaxed);
    do {
        first = ms > last >> idgen->counter_bits ? first_number(idgen, slot, ms) : last + 1;
        if (KL_UNLIKELY(first >= idgen->end || count > idgen->end - first))
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&slot->last, &last, first + count - 1, memory_order_relaxed,
                                                    memory_order_relaxed));
    *ret_first = first;
    return true;
}

static inline kl_task_id make_id(const kl_idgen *idgen, const struct slot *slot, uint32_t shard, uint32_t lane,
                                 uint64_t number)
{
    uint64_t random = scramble(slot, ~number);
    uint64_t counter = low_bits(number, idgen->counter_bits);
    uint64_t spare = low_bits(random >> RANDOM_BITS, idgen->spare_bits);
    kl_id_parts parts = {
        .shard = shard,
        .ms = (int64_t)(number >> idgen->counter_bits),
        .sequence = (uint32_t)(counter << idgen->spare_bits | spare),
        .lane = lane,
        .random = (uint32_t)low_bits(random, RANDOM_BITS),
    };
    return pack(kl__shard_bits(&idgen->layout), parts);
}

static kl_rc check_batch(const kl_idgen *idgen, uint32_t shard, const uint32_t *lanes, size_t count)
{
    if (shard >= idgen->shards)
        return kl__fail(KL_EINVAL, "there is no shard %u: this queue has %u, counted from 0", shard, idgen->shards);
    if (count > KL_IDGEN_BATCH_MAX)
        return kl__fail(KL_EINVAL, "%zu ids are too many for one call: ask for at most %d", count, KL_IDGEN_BATCH_MAX);
    for (size_t i = 0; lanes && i < count; i++)
        if (lanes[i] > KL_LANE_MAX)
            return kl__fail(KL_EINVAL, "there is no lane %u: use what kl_lane_of() returns", lanes[i]);
    return KL_OK;
}

kl_rc kl_idgen_batch(kl_idgen *idgen, uint32_t shard, const uint32_t *lanes, size_t count, kl_task_id *ret_ids)
{
    kl_rc rc = check_batch(idgen, shard, lanes, count);
    if (rc != KL_OK || count == 0)
        return rc;
    struct slot *slot = &idgen->slots[shard & idgen->slot_mask];
    uint64_t first;
    if (!take_numbers(idgen, slot, count, &first))
        return kl__fail(KL_ESYSTEM, "the clock says it is June 2527 or later, where task ids end: set the clock");
    for (size_t i = 0; i < count; i++)
        ret_ids[i] = make_id(idgen, slot, shard, lanes ? lanes[i] : 0, first + i);
    return KL_OK;
}

kl_rc kl_idgen_next(kl_idgen *idgen, uint32_t shard, uint32_t lane, kl_task_id *ret_id)
{
    return kl_idgen_batch(idgen, shard, &lane, 1, ret_id);
}
