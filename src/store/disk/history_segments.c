/* history_segments.c - the search index: which documents have a term, for any combination of terms, in bounded time.
 *
 * From: history.c (documents in the order of their numbers).  To: history_find.c.
 *
 * A document is one error of a task, or the task itself when it has none. Its terms are hashes: of the task's
 * partition, state, key, kind and job, and of the words of the error. Terms of one document are in one error's
 * company, so "all words in one error" is the same intersection as "this key and that state".
 *
 * Documents lie in segments of up to 65,536, and a term's documents in a segment are a list or a bitmap, whichever is
 * shorter. To search is to intersect those sets segment by segment from the newest: a segment costs one look per term
 * and at most 8 KiB per set, however common the terms are and however little they have in common. 10,000,000 tasks are
 * some 170 segments. Rejected: one SQLite index per field, because two common terms that rarely meet take a walk over
 * all of one of them, and an index on the key writes a page for every row; FTS5, because it too walks both lists.
 *
 * Each add writes a small segment of its own, appended to the table in the order of its terms. Eight segments of a size
 * class are joined into one of the next, so a term is written again at most once per class, and nothing of the index
 * is kept in memory or has to be rebuilt after a crash. Removed documents are marked in the segment's `dead` set; where
 * less than half is left, neighbours that fit together are joined without them.
 *
 *      table segments    one row each, see history.c. `postings` counts (term, document) pairs.
 *      table blocks      block = segment << 23 | highest 23 bits of the first term in it
 *
 *      body, dead        checksum u32 | entries in ascending order of terms (dead: one entry with term 0)
 *      entry             term u64 | count - 1 u16 | documents
 *      documents         nothing when all have it; count x u16 ascending; or one bit for each, rounded up to bytes
 *      numbers           checksum u32 | for each document, its number - first, u32
 *
 * All little-endian. The checksum is the low half of the XXH64 of what follows.
 *
 * G1  Segments do not overlap, and every live document is in one.
 * G2  Terms with the same highest 23 bits are in the same block, so the last block at or before a term has it or no
 *     block does. */
#include <endian.h>
#include <string.h>

#include "base/hash.h"
#include "store/disk/history_inside.h"

enum {
    DOCS_MAX = KL_HISTORY_DOCS_MAX,
    WORDS = KL_HISTORY_WORDS,
    POSTINGS_MAX = DOCS_MAX * KL_HISTORY_POSTINGS_PER_DOC, /* more begin a new segment: 32 MiB while it is made */
    ROOM_KEPT = 1 << 17,                                   /* postings for which memory is kept between calls: 4 MiB */
    BUCKET_BITS = 23,
    BLOCK_BYTES = 4000, /* fits a page of 4,096 bytes */
    SUM_BYTES = KL_HISTORY_SUM_BYTES,
    ENTRY_BYTES = 10,
};

#define SEGMENT_MAX (INT64_C(1) << (63 - BUCKET_BITS))

/* ---- Terms ---- */

uint64_t kl__term(kl__term_kind kind, kl_bytes bytes) { return kl__hash(bytes, (uint64_t)kind); }

uint64_t kl__term_number(kl__term_kind kind, uint32_t number)
{
    uint32_t wire = htole32(number);
    return kl__term(kind, (kl_bytes){&wire, sizeof wire});
}

/* What is not part of a word is 0; the rest is what it counts as. */
static uint8_t fold(uint8_t byte)
{
    if (byte >= 'A' && byte <= 'Z')
        return byte | 0x20;
    return (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte >= 0x80 ? byte : 0;
}

bool kl__term_word(kl_bytes *text, uint64_t *ret_term)
{
    /* A word that is longer than any error stands in none, and neither does its beginning of this length. */
    uint8_t word[KL_ERROR_BYTES_MAX + 1];
    size_t len = 0, at = 0;
    const uint8_t *bytes = text->data;
    while (at < text->len && !fold(bytes[at]))
        at++;
    for (; at < text->len && fold(bytes[at]); at++)
        if (len < sizeof word)
            word[len++] = fold(bytes[at]);
    *text = (kl_bytes){bytes ? bytes + at : NULL, text->len - at};
    *ret_term = kl__term(KL_TERM_WORD, (kl_bytes){word, len});
    return len > 0;
}

/* ---- Sets of documents on disk ---- */

static void put_u16(uint8_t *to, uint32_t value) { to[0] = (uint8_t)value, to[1] = (uint8_t)(value >> 8); }
static uint32_t get_u16(const uint8_t *from) { return from[0] | (uint32_t)from[1] << 8; }

static uint32_t get_u32(const uint8_t *from)
{
    uint32_t wire;
    memcpy(&wire, from, sizeof wire);
    return le32toh(wire);
}

static void put_u32(uint8_t *to, uint32_t value)
{
    value = htole32(value);
    memcpy(to, &value, sizeof value);
}

static uint32_t sum_of(const uint8_t *body, size_t len)
{
    return (uint32_t)kl__hash((kl_bytes){body + SUM_BYTES, len - SUM_BYTES}, 0);
}

static void seal(uint8_t *body, size_t len) { put_u32(body, sum_of(body, len)); }

static bool is_sealed(kl_bytes body)
{
    return body.len >= SUM_BYTES && get_u32(body.data) == sum_of(body.data, body.len);
}

static size_t bitmap_bytes(uint32_t docs) { return (docs + 7) / 8; }
static bool is_list(uint32_t count, uint32_t docs) { return (size_t)count * 2 < bitmap_bytes(docs); }

static size_t documents_bytes(uint32_t count, uint32_t docs)
{
    return count == docs ? 0 : is_list(count, docs) ? (size_t)count * 2 : bitmap_bytes(docs);
}

struct entry {
    uint64_t term;
    uint32_t count;
    const uint8_t *documents;
};

/* The entry at *at, which is moved behind it. False: what is there is none. */
static bool next_entry(const uint8_t **at, const uint8_t *end, uint32_t docs, struct entry *ret_entry)
{
    if (end - *at < ENTRY_BYTES)
        return false;
    uint64_t wire;
    memcpy(&wire, *at, sizeof wire);
    struct entry found = {le64toh(wire), get_u16(*at + 8) + 1, *at + ENTRY_BYTES};
    if (found.count > docs || (size_t)(end - found.documents) < documents_bytes(found.count, docs))
        return false;
    *at = found.documents + documents_bytes(found.count, docs);
    *ret_entry = found;
    return true;
}

static void set_first(uint64_t *bits, uint32_t docs)
{
    memset(bits, 0xff, docs / 64 * sizeof *bits);
    if (docs % 64)
        bits[docs / 64] = (UINT64_C(1) << docs % 64) - 1;
}

/* False: a document that the segment does not have. */
static bool set_bits(const struct entry *from, uint32_t docs, uint64_t *bits)
{
    memset(bits, 0, WORDS * sizeof *bits);
    if (from->count == docs) {
        set_first(bits, docs);
    } else if (is_list(from->count, docs)) {
        for (uint32_t i = 0; i < from->count; i++) {
            uint32_t doc = get_u16(from->documents + 2 * (size_t)i);
            if (doc >= docs)
                return false;
            bits[doc / 64] |= UINT64_C(1) << doc % 64;
        }
    } else {
        memcpy(bits, from->documents, bitmap_bytes(docs));
        for (uint32_t i = 0; i < WORDS; i++)
            bits[i] = le64toh(bits[i]);
        if (docs < DOCS_MAX && bits[docs / 64] >> docs % 64)
            return false;
    }
    return true;
}

/* Writes an entry for `count` ascending documents, and returns its length. */
static size_t put_entry(uint8_t *to, uint64_t term, const kl__posting *items, uint32_t count, uint32_t docs)
{
    size_t len = documents_bytes(count, docs);
    uint64_t wire = htole64(term);
    memcpy(to, &wire, sizeof wire);
    put_u16(to + 8, count - 1);
    to += ENTRY_BYTES;
    if (is_list(count, docs) && count < docs) {
        for (uint32_t i = 0; i < count; i++)
            put_u16(to + 2 * (size_t)i, items[i].doc);
    } else if (len) {
        memset(to, 0, len);
        for (uint32_t i = 0; i < count; i++)
            to[items[i].doc / 8] |= (uint8_t)(1 << items[i].doc % 8);
    }
    return ENTRY_BYTES + len;
}

/* ---- Making a segment ---- */

void kl__index_start(kl__index *index, int64_t first, int64_t last_segment)
{
    index->count = index->docs = 0;
    index->first = first;
    index->last_segment = last_segment;
    if (index->room > ROOM_KEPT)
        kl__index_free(index);
}

void kl__index_free(kl__index *index)
{
    kl__free(index->items);
    kl__free(index->spare);
    index->items = index->spare = NULL;
    index->count = index->room = 0;
}

static kl_rc grow(kl__index *index)
{
    size_t room = index->room ? 2 * index->room : 4096;
    kl__posting *items = kl__alloc_zeroed(room, sizeof *items), *spare = kl__alloc_zeroed(room, sizeof *spare);
    if (!items || !spare) {
        kl__free(items);
        kl__free(spare);
        return kl__fail_memory();
    }
    if (index->count)
        memcpy(items, index->items, index->count * sizeof *items);
    kl__free(index->items);
    kl__free(index->spare);
    index->items = items;
    index->spare = spare;
    index->room = room;
    return KL_OK;
}

static kl_rc add_posting(kl__index *index, uint64_t term, uint32_t doc)
{
    if (index->count == index->room)
        KL_TRY(grow(index));
    index->items[index->count++] = (kl__posting){term, doc};
    return KL_OK;
}

kl_rc kl__index_doc(kl__index *index, kl__hdb *db)
{
    if (index->docs == DOCS_MAX || index->count >= POSTINGS_MAX)
        KL_TRY(kl__index_write(index, db));
    index->docs++;
    return KL_OK;
}

kl_rc kl__index_term(kl__index *index, uint64_t term) { return add_posting(index, term, index->docs - 1); }

/* By term; documents of a term stay in their order. */
static void sort(kl__index *index)
{
    for (int shift = 0; shift < 64; shift += 8) {
        size_t at[256] = {0}, sum = 0;
        for (size_t i = 0; i < index->count; i++)
            at[index->items[i].term >> shift & 255]++;
        for (int i = 0; i < 256; i++) {
            size_t count = at[i];
            at[i] = sum;
            sum += count;
        }
        for (size_t i = 0; i < index->count; i++)
            index->spare[at[index->items[i].term >> shift & 255]++] = index->items[i];
        kl__posting *sorted = index->spare;
        index->spare = index->items;
        index->items = sorted;
    }
}

/* A word that stands in an error twice is one posting. */
static void drop_doubles(kl__index *index)
{
    size_t count = 0;
    for (size_t i = 0; i < index->count; i++) {
        const kl__posting *item = &index->items[i], *last = count ? &index->items[count - 1] : NULL;
        if (!last || last->term != item->term || last->doc != item->doc)
            index->items[count++] = *item;
    }
    index->count = count;
}

static uint64_t bucket_of(uint64_t term) { return term >> (64 - BUCKET_BITS); }
static int64_t block_of(int64_t segment, uint64_t bucket) { return segment << BUCKET_BITS | (int64_t)bucket; }

/* Where a block is put together. */
struct block {
    uint8_t *body;
    size_t len, room;
    uint64_t first, last; /* buckets */
};

static kl_rc write_block(kl__hdb *db, struct block *block, int64_t segment)
{
    sqlite3_stmt *statement;
    KL_TRY(kl__hdb_use(db, KL_SQL_ADD_BLOCK, &statement));
    seal(block->body, block->len);
    sqlite3_bind_int64(statement, 1, block_of(segment, block->first));
    kl__hdb_bind_bytes(statement, 2, (kl_bytes){block->body, block->len});
    block->len = SUM_BYTES;
    return kl__hdb_run(db, statement);
}

static kl_rc make_room(struct block *block, size_t len)
{
    if (block->len + len <= block->room)
        return KL_OK;
    size_t room = 2 * (block->len + len);
    uint8_t *body = kl__alloc(room);
    if (!body)
        return kl__fail_memory();
    memcpy(body, block->body, block->len);
    kl__free(block->body);
    block->body = body;
    block->room = room;
    return KL_OK;
}

/* The postings of one term, into this block or (G2) into the next. */
static kl_rc add_entry(kl__hdb *db, const kl__index *index, struct block *block, int64_t segment,
                       const kl__posting *items, uint32_t count)
{
    size_t len = ENTRY_BYTES + documents_bytes(count, index->docs);
    uint64_t bucket = bucket_of(items->term);
    if (block->len > SUM_BYTES && block->len + len > BLOCK_BYTES && bucket != block->last)
        KL_TRY(write_block(db, block, segment));
    KL_TRY(make_room(block, len));
    if (block->len == SUM_BYTES)
        block->first = bucket;
    block->last = bucket;
    block->len += put_entry(block->body + block->len, items->term, items, count, index->docs);
    return KL_OK;
}

static kl_rc add_entries(kl__hdb *db, const kl__index *index, struct block *block, int64_t segment)
{
    for (size_t i = 0, next; i < index->count; i = next) {
        for (next = i + 1; next < index->count && index->items[next].term == index->items[i].term;)
            next++;
        KL_TRY(add_entry(db, index, block, segment, &index->items[i], (uint32_t)(next - i)));
    }
    return block->len > SUM_BYTES ? write_block(db, block, segment) : KL_OK;
}

static kl_rc write_blocks(kl__hdb *db, const kl__index *index, int64_t segment)
{
    enum { ROOM = BLOCK_BYTES + ENTRY_BYTES + DOCS_MAX / 8 };
    struct block block = {.body = kl__alloc(ROOM), .len = SUM_BYTES, .room = ROOM};
    if (!block.body)
        return kl__fail_memory();
    memset(block.body, 0, SUM_BYTES);
    kl_rc rc = add_entries(db, index, &block, segment);
    kl__free(block.body);
    return rc;
}

kl_rc kl__index_write_as(kl__index *index, kl__hdb *db, int64_t last, uint8_t *numbers)
{
    sqlite3_stmt *statement;
    int64_t segment = index->last_segment + 1;
    if (segment >= SEGMENT_MAX)
        return kl__hdb_damaged(db, "there are no more names for segments");
    size_t numbers_len = numbers ? SUM_BYTES + 4 * (size_t)index->docs : 0;
    if (numbers)
        seal(numbers, numbers_len);
    sort(index);
    drop_doubles(index);
    KL_TRY(write_blocks(db, index, segment));
    KL_TRY(kl__hdb_use(db, KL_SQL_ADD_SEGMENT, &statement));
    sqlite3_bind_int64(statement, 1, index->first);
    sqlite3_bind_int64(statement, 2, last);
    sqlite3_bind_int64(statement, 3, segment);
    sqlite3_bind_int64(statement, 4, index->docs);
    sqlite3_bind_int64(statement, 5, (int64_t)index->count);
    sqlite3_bind_int64(statement, 6, index->docs);
    kl__hdb_bind_bytes(statement, 7, (kl_bytes){numbers, numbers_len});
    KL_TRY(kl__hdb_run(db, statement));
    kl__index_start(index, last + 1, segment);
    return KL_OK;
}

kl_rc kl__index_write(kl__index *index, kl__hdb *db)
{
    if (!index->docs)
        return KL_OK;
    return kl__index_write_as(index, db, index->first + index->docs - 1, NULL);
}

/* ---- Reading a segment ---- */

kl__term_segment kl__term_segment_row(sqlite3_stmt *statement)
{
    return (kl__term_segment){
        .first = sqlite3_column_int64(statement, 0),
        .last = sqlite3_column_int64(statement, 1),
        .segment = sqlite3_column_int64(statement, 2),
        .docs = (uint32_t)sqlite3_column_int64(statement, 3),
        .postings = (uint32_t)sqlite3_column_int64(statement, 4),
        .live = (uint32_t)sqlite3_column_int64(statement, 5),
    };
}

kl_rc kl__term_segment_damaged(kl__hdb *db) { return kl__hdb_damaged(db, "its search index"); }

bool kl__term_segment_is_sound(const kl__term_segment *segment)
{
    return segment->docs >= 1 && segment->docs <= DOCS_MAX && segment->live <= segment->docs && segment->segment > 0 &&
           segment->segment < SEGMENT_MAX && segment->last >= segment->first;
}

kl_rc kl__term_segment_term(kl__hdb *db, const kl__term_segment *segment, uint64_t term, uint64_t *ret_bits,
                            bool *ret_any)
{
    sqlite3_stmt *statement;
    bool row;
    *ret_any = false;
    if (!kl__term_segment_is_sound(segment))
        return kl__term_segment_damaged(db);
    KL_TRY(kl__hdb_use(db, KL_SQL_BLOCK, &statement));
    sqlite3_bind_int64(statement, 1, block_of(segment->segment, 0));
    sqlite3_bind_int64(statement, 2, block_of(segment->segment, bucket_of(term)));
    KL_TRY(kl__hdb_step(db, statement, &row));
    if (!row)
        return KL_OK;
    kl_bytes body = kl__hdb_bytes(statement, 0);
    if (!is_sealed(body))
        return kl__term_segment_damaged(db);
    const uint8_t *at = (const uint8_t *)body.data + SUM_BYTES, *end = at + body.len - SUM_BYTES;
    for (struct entry entry; at < end;) {
        if (!next_entry(&at, end, segment->docs, &entry))
            return kl__term_segment_damaged(db);
        if (entry.term > term)
            break;
        if (entry.term == term) {
            *ret_any = true;
            return set_bits(&entry, segment->docs, ret_bits) ? KL_OK : kl__term_segment_damaged(db);
        }
    }
    return KL_OK;
}

static bool set_dead(kl_bytes body, uint32_t docs, uint64_t *bits)
{
    struct entry entry;
    memset(bits, 0, WORDS * sizeof *bits);
    if (!body.len)
        return true;
    if (!is_sealed(body))
        return false;
    const uint8_t *at = (const uint8_t *)body.data + SUM_BYTES, *end = at + body.len - SUM_BYTES;
    return next_entry(&at, end, docs, &entry) && at == end && set_bits(&entry, docs, bits);
}

kl_rc kl__term_segment_blobs(kl__hdb *db, const kl__term_segment *segment, uint64_t *ret_dead,
                             const uint8_t **ret_numbers)
{
    sqlite3_stmt *statement;
    bool row;
    if (!kl__term_segment_is_sound(segment))
        return kl__term_segment_damaged(db);
    KL_TRY(kl__hdb_use(db, KL_SQL_SEGMENT_BLOBS, &statement));
    sqlite3_bind_int64(statement, 1, segment->first);
    KL_TRY(kl__hdb_step(db, statement, &row));
    if (!row || !set_dead(kl__hdb_bytes(statement, 0), segment->docs, ret_dead))
        return kl__term_segment_damaged(db);
    kl_bytes numbers = kl__hdb_bytes(statement, 1);
    *ret_numbers = NULL;
    if (numbers.len) {
        if (numbers.len != SUM_BYTES + 4 * (size_t)segment->docs || !is_sealed(numbers))
            return kl__term_segment_damaged(db);
        *ret_numbers = (const uint8_t *)numbers.data + SUM_BYTES;
        if (kl__term_segment_number(segment, *ret_numbers, 0) != segment->first ||
            kl__term_segment_number(segment, *ret_numbers, segment->docs - 1) != segment->last)
            return kl__term_segment_damaged(db);
    } else if (segment->last - segment->first + 1 != segment->docs) {
        return kl__term_segment_damaged(db);
    }
    return KL_OK;
}

void kl__term_segment_put_number(uint8_t *numbers, uint32_t doc, uint32_t number_less_first)
{
    put_u32(numbers + SUM_BYTES + 4 * (size_t)doc, number_less_first);
}

int64_t kl__term_segment_number(const kl__term_segment *segment, const uint8_t *numbers, uint32_t doc)
{
    return segment->first + (numbers ? get_u32(numbers + 4 * (size_t)doc) : doc);
}

/* ---- All of a segment ---- */

/* Where the postings of a segment go: into an index, with new places for the live documents. */
struct taker {
    kl__hdb *db;
    const kl__term_segment *segment;
    kl__index *index; /* NULL: only looks whether they can be read */
    const uint64_t *dead;
    const uint32_t *places;
    uint64_t postings; /* seen */
    uint64_t last;     /* term seen */
};

static kl_rc take_posting(struct taker *taker, uint64_t term, uint32_t doc)
{
    taker->postings++;
    if (!taker->index || taker->dead[doc / 64] >> doc % 64 & 1)
        return KL_OK;
    return add_posting(taker->index, term, taker->places[doc]);
}

static kl_rc take_list(struct taker *taker, const struct entry *entry)
{
    for (uint32_t i = 0; i < entry->count; i++) {
        uint32_t doc = get_u16(entry->documents + 2 * (size_t)i);
        if (doc >= taker->segment->docs)
            return kl__term_segment_damaged(taker->db);
        KL_TRY(take_posting(taker, entry->term, doc));
    }
    return KL_OK;
}

static kl_rc take_bitmap(struct taker *taker, const struct entry *entry)
{
    uint64_t bits[WORDS];
    uint32_t docs = taker->segment->docs;
    if (!set_bits(entry, docs, bits))
        return kl__term_segment_damaged(taker->db);
    for (uint32_t word = 0; word < (docs + 63) / 64; word++)
        for (uint64_t left = bits[word]; left; left &= left - 1)
            KL_TRY(take_posting(taker, entry->term, word * 64 + (uint32_t)__builtin_ctzll(left)));
    return KL_OK;
}

static kl_rc take_block(struct taker *taker, kl_bytes body, int64_t name)
{
    uint32_t docs = taker->segment->docs;
    if (!is_sealed(body) || (taker->postings && name <= block_of(taker->segment->segment, bucket_of(taker->last))))
        return kl__term_segment_damaged(taker->db); /* G2 */
    const uint8_t *at = (const uint8_t *)body.data + SUM_BYTES, *end = at + body.len - SUM_BYTES;
    for (struct entry entry; at < end;) {
        if (!next_entry(&at, end, docs, &entry) || name > block_of(taker->segment->segment, bucket_of(entry.term)))
            return kl__term_segment_damaged(taker->db);
        taker->last = entry.term;
        bool list = is_list(entry.count, docs) && entry.count < docs;
        KL_TRY(list ? take_list(taker, &entry) : take_bitmap(taker, &entry));
    }
    return KL_OK;
}

kl_rc kl__term_segment_take(kl__hdb *db, const kl__term_segment *segment, kl__index *index, const uint64_t *dead,
                            const uint32_t *places)
{
    sqlite3_stmt *statement;
    bool row;
    struct taker taker = {db, segment, index, dead, places, 0, 0};
    KL_TRY(kl__hdb_use(db, KL_SQL_BLOCKS, &statement));
    sqlite3_bind_int64(statement, 1, block_of(segment->segment, 0));
    sqlite3_bind_int64(statement, 2, block_of(segment->segment + 1, 0) - 1);
    for (;;) {
        KL_TRY(kl__hdb_step(db, statement, &row));
        if (!row)
            return taker.postings == segment->postings ? KL_OK : kl__term_segment_damaged(db);
        KL_TRY(take_block(&taker, kl__hdb_bytes(statement, 0), sqlite3_column_int64(statement, 1)));
    }
}

kl_rc kl__term_segment_check(kl__hdb *db, const kl__term_segment *segment, uint64_t *sum)
{
    uint64_t dead[WORDS];
    const uint8_t *numbers;
    KL_TRY(kl__term_segment_blobs(db, segment, dead, &numbers));
    uint32_t live = 0;
    for (uint32_t doc = 0; doc < segment->docs; doc++)
        if (!(dead[doc / 64] >> doc % 64 & 1)) {
            *sum += (uint64_t)kl__term_segment_number(segment, numbers, doc);
            live++;
        }
    return live == segment->live ? kl__term_segment_take(db, segment, NULL, NULL, NULL) : kl__term_segment_damaged(db);
}

kl_rc kl__term_segment_drop(kl__hdb *db, const kl__term_segment *segment)
{
    sqlite3_stmt *statement;
    KL_TRY(kl__hdb_use(db, KL_SQL_DROP_BLOCKS, &statement));
    sqlite3_bind_int64(statement, 1, block_of(segment->segment, 0));
    sqlite3_bind_int64(statement, 2, block_of(segment->segment + 1, 0) - 1);
    KL_TRY(kl__hdb_run(db, statement));
    KL_TRY(kl__hdb_use(db, KL_SQL_DROP_SEGMENT, &statement));
    sqlite3_bind_int64(statement, 1, segment->first);
    return kl__hdb_run(db, statement);
}

kl_rc kl__term_segment_set_dead(kl__hdb *db, const kl__term_segment *segment, const uint64_t *dead)
{
    uint8_t body[SUM_BYTES + ENTRY_BYTES + DOCS_MAX / 8];
    uint32_t count = segment->docs - segment->live;
    kl__posting *items = kl__alloc_zeroed(count, sizeof *items);
    sqlite3_stmt *statement;
    if (!items)
        return kl__fail_memory();
    size_t found = 0;
    for (uint32_t word = 0; word < WORDS; word++)
        for (uint64_t left = dead[word]; left; left &= left - 1)
            items[found++].doc = word * 64 + (uint32_t)__builtin_ctzll(left);
    size_t len = SUM_BYTES + put_entry(body + SUM_BYTES, 0, items, count, segment->docs);
    kl__free(items);
    seal(body, len);
    KL_TRY(kl__hdb_use(db, KL_SQL_SET_DEAD, &statement));
    sqlite3_bind_int64(statement, 1, segment->first);
    sqlite3_bind_int64(statement, 2, segment->live);
    kl__hdb_bind_bytes(statement, 3, (kl_bytes){body, len});
    return kl__hdb_run(db, statement);
}
