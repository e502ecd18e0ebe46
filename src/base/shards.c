/* shards.c - sets of shards as bitmaps: from text, from "worker i of n", and back to text.
 *
 * S1  No bit at or above the layout's number of shards is ever set.
 *
 * Reading works on pieces: a piece knows its text and its column, so that a refusal can say where it stands. */
#include "keyline/shards.h"

#include "base/base.h"
#include "base/layout.h"

struct piece {
    kl_bytes text;
    size_t column; /* of its first byte, from 1 */
};

static bool valid(const kl_shards *shards)
{
    uint32_t count = kl_layout_shards(&shards->layout);
    return count >= 64 || shards->bits[0] >> count == 0; /* S1 where it is cheap: larger layouts fill whole words */
}

void kl_shards_none(const kl_layout *layout, kl_shards *ret_shards)
{
    KL_ASSERT(kl__layout_valid(layout));
    memset(ret_shards, 0, sizeof *ret_shards);
    ret_shards->layout = *layout;
}

/* The low n bits of a word, n up to 64. */
static uint64_t low_bits(uint32_t n) { return n >= 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1; }

/* Adds the shards first .. end-1. */
static void add_range(kl_shards *shards, uint32_t first, uint32_t end)
{
    KL_ASSERT(end <= kl_layout_shards(&shards->layout));
    for (uint32_t word = first / 64; word * 64 < end; word++) {
        uint32_t base = word * 64;
        uint64_t below_first = first > base ? low_bits(first - base) : 0;
        shards->bits[word] |= low_bits(end - base) & ~below_first;
    }
}

void kl_shards_all(const kl_layout *layout, kl_shards *ret_shards)
{
    kl_shards_none(layout, ret_shards);
    add_range(ret_shards, 0, kl_layout_shards(layout));
}

static struct piece cut(struct piece whole, size_t from, size_t to)
{
    return (struct piece){{(const char *)whole.text.data + from, to - from}, whole.column + from};
}

static struct piece trim(struct piece piece)
{
    const char *text = piece.text.data;
    size_t from = 0, to = piece.text.len;
    while (from < to && (text[from] == ' ' || text[from] == '\t'))
        from++;
    while (to > from && (text[to - 1] == ' ' || text[to - 1] == '\t'))
        to--;
    return cut(piece, from, to);
}

/* Where the first `c` at or after `from` stands; the length when there is none. */
static size_t find(struct piece piece, char c, size_t from)
{
    const char *text = piece.text.data;
    const char *found = from < piece.text.len ? memchr(text + from, c, piece.text.len - from) : NULL;
    return found ? (size_t)(found - text) : piece.text.len;
}

static kl_rc fail_reversed(struct piece range, struct piece first, struct piece last)
{
    char quoted[KL_QUOTE_BYTES];
    return kl__fail(KL_EINVAL, "the range %s at column %zu runs backwards: write \"%.*s-%.*s\"",
                    kl__quote(range.text, quoted), range.column, (int)last.text.len, (const char *)last.text.data,
                    (int)first.text.len, (const char *)first.text.data);
}

/* Adds one item of a list: a shard, or first-last. */
static kl_rc add_item(kl_shards *shards, struct piece item)
{
    size_t dash = find(item, '-', 0);
    bool is_range = dash < item.text.len;
    struct piece first = cut(item, 0, dash);
    struct piece last = is_range ? cut(item, dash + 1, item.text.len) : first;
    uint32_t from, to;
    kl_rc rc = kl__shard_parse_at(&shards->layout, first.text, first.column, &from);
    if (rc == KL_OK)
        rc = kl__shard_parse_at(&shards->layout, last.text, last.column, &to);
    if (rc != KL_OK)
        return rc;
    if (from > to)
        return fail_reversed(item, first, last);
    add_range(shards, from, to + 1);
    return KL_OK;
}

static kl_rc add_list(kl_shards *shards, struct piece list)
{
    for (size_t start = 0, comma; start <= list.text.len; start = comma + 1) {
        comma = find(list, ',', start);
        struct piece item = trim(cut(list, start, comma));
        if (item.text.len == 0)
            return kl__fail(
                KL_EINVAL,
                "item \"\" at column %zu of the list of shards is empty: write a shard or a range there, or "
                "take out the comma",
                list.column + start);
        kl_rc rc = add_item(shards, item);
        if (rc != KL_OK)
            return rc;
    }
    return KL_OK;
}

kl_rc kl_shards_parse(const kl_layout *layout, kl_bytes text, kl_shards *ret_shards)
{
    kl_shards shards;
    kl_shards_none(layout, &shards);
    struct piece list = trim((struct piece){{text.len ? text.data : "", text.len}, 1});
    if (list.text.len == 0)
        return kl__fail(KL_EINVAL,
                        "the list of shards \"\" at column 1 is empty: write shards and ranges as in \"%s\", "
                        "\"none\", or leave the setting out for all",
                        layout->shard_prefix_len == 1 ? "0,8-f" : "00,80-ff");
    bool none = list.text.len == 4 && memcmp(list.text.data, "none", 4) == 0;
    kl_rc rc = none ? KL_OK : add_list(&shards, list);
    if (rc == KL_OK)
        *ret_shards = shards;
    return rc;
}

kl_rc kl_shards_slice(const kl_layout *layout, int64_t worker, int64_t workers, kl_shards *ret_shards)
{
    if (workers < 1 || workers > KL_SLICE_WORKERS_MAX)
        return kl__fail(KL_EINVAL, "the shards cannot be shared by %lld workers: write 1 to %d", (long long)workers,
                        KL_SLICE_WORKERS_MAX);
    if (worker < 0 || worker >= workers)
        return kl__fail(KL_EINVAL, "there is no worker %lld of %lld: workers are counted from 0, write 0 to %lld",
                        (long long)worker, (long long)workers, (long long)workers - 1);
    int64_t shards = kl_layout_shards(layout);
    kl_shards_none(layout, ret_shards);
    add_range(ret_shards, (uint32_t)(shards * worker / workers), (uint32_t)(shards * (worker + 1) / workers));
    return KL_OK;
}

uint32_t kl_shards_count(const kl_shards *shards)
{
    KL_ASSERT(valid(shards));
    uint32_t words = (kl_layout_shards(&shards->layout) + 63) / 64, count = 0;
    for (uint32_t word = 0; word < words; word++)
        count += (uint32_t)__builtin_popcountll(shards->bits[word]);
    return count;
}

bool kl_shards_contains(const kl_shards *shards, uint32_t shard)
{
    return shard < kl_layout_shards(&shards->layout) && (shards->bits[shard / 64] >> (shard % 64) & 1);
}

int64_t kl_shards_next(const kl_shards *shards, int64_t from)
{
    KL_ASSERT(valid(shards));
    int64_t end = kl_layout_shards(&shards->layout);
    for (int64_t at = from < 0 ? 0 : from; at < end; at = (at / 64 + 1) * 64) {
        uint64_t rest = shards->bits[at / 64] >> (at % 64);
        if (rest)
            return at + __builtin_ctzll(rest);
    }
    return -1;
}

/* Text that is counted in full and kept as far as there is room. */
struct out {
    char *buffer;
    size_t size;
    size_t len;
};

static void put(struct out *out, const char *text)
{
    for (; *text; text++, out->len++)
        if (out->len + 1 < out->size)
            out->buffer[out->len] = *text;
}

static void put_range(struct out *out, const kl_layout *layout, uint32_t first, uint32_t last)
{
    char name[KL_SHARD_NAME_BYTES];
    put(out, out->len ? "," : "");
    kl_shard_name(layout, first, name);
    put(out, name);
    if (last == first)
        return;
    kl_shard_name(layout, last, name);
    put(out, "-");
    put(out, name);
}

size_t kl_shards_print(const kl_shards *shards, char *buffer, size_t size)
{
    struct out out = {buffer, size, 0};
    for (int64_t first = kl_shards_next(shards, 0); first >= 0;) {
        int64_t last = first, next;
        while ((next = kl_shards_next(shards, last + 1)) == last + 1)
            last = next;
        put_range(&out, &shards->layout, (uint32_t)first, (uint32_t)last);
        first = next;
    }
    if (out.len == 0)
        put(&out, "none");
    if (size > 0)
        buffer[out.len < size ? out.len : size - 1] = '\0';
    return out.len;
}
