/* history_join.c - keeps the search index small: joins segments, and takes out what has been forgotten.
 *
 * From: history.c.  To: history_segments.c.
 *
 * Sizes count in documents, or postings where those fill a segment more, in classes of a factor of FAN. When FAN of the
 * latest segments are of a class or below, they become one of the next class. A class is passed once, so a document is
 * written again five times at most, and at most 7 small segments of each class stand behind the full ones.
 *
 * A segment in which less than half is left is joined with a neighbour once both fit into half a segment: so in a
 * history whose tasks expire at different times the segments that a search looks at stay in proportion to what is kept.
 *
 * J1  Joining changes neither the order nor the numbers of documents. */
#include "store/disk/history_inside.h"

enum {
    DOCS_MAX = KL_HISTORY_DOCS_MAX,
    WORDS = KL_HISTORY_WORDS,
    FAN = 8,               /* segments of a class that are joined */
    LATE = 64,             /* segments that are looked at for this: FAN - 1 of each class, and some */
    SPARSE = DOCS_MAX / 2, /* up to which neighbours are joined when little is left of one */
    SPARSE_JOINS_MAX = 4,  /* in one transaction */
};

/* ---- Joining ---- */

/* What a join works on: too big for a stack. */
struct join {
    uint64_t dead[WORDS];
    uint32_t places[DOCS_MAX];                            /* in the new segment; of the dead ones, nothing */
    uint8_t numbers[KL_HISTORY_SUM_BYTES + 4 * DOCS_MAX]; /* as stored */
    int64_t first, last;
    uint32_t docs;
};

/* Gives the live documents their new places. */
static kl_rc renumber(kl__hdb *db, const kl__term_segment *segment, struct join *join)
{
    const uint8_t *numbers;
    KL_TRY(kl__term_segment_blobs(db, segment, join->dead, &numbers));
    for (uint32_t doc = 0; doc < segment->docs; doc++) {
        if (join->dead[doc / 64] >> doc % 64 & 1)
            continue;
        int64_t number = kl__term_segment_number(segment, numbers, doc);
        if (!join->docs)
            join->first = number;
        if (join->docs == DOCS_MAX || number - join->first > UINT32_MAX || (join->docs && number <= join->last))
            return kl__term_segment_damaged(db);
        kl__term_segment_put_number(join->numbers, join->docs, (uint32_t)(number - join->first));
        join->places[doc] = join->docs++;
        join->last = number;
    }
    return KL_OK;
}

static kl_rc join_into(kl__index *index, kl__hdb *db, const kl__term_segment *segments, size_t count, struct join *join)
{
    for (size_t i = 0; i < count; i++) {
        KL_TRY(renumber(db, &segments[i], join));
        KL_TRY(kl__term_segment_take(db, &segments[i], index, join->dead, join->places));
        KL_TRY(kl__term_segment_drop(db, &segments[i]));
    }
    if (!join->docs)
        return KL_OK;
    index->docs = join->docs;
    index->first = join->first;
    bool runs_on = join->last - join->first + 1 == join->docs;
    return kl__index_write_as(index, db, join->last, runs_on ? NULL : join->numbers);
}

/* Makes one segment of neighbours, in ascending order, whose live documents fit. */
static kl_rc join_segments(kl__index *index, kl__hdb *db, const kl__term_segment *segments, size_t count)
{
    KL_ASSERT(!index->docs && !index->count);
    struct join *join = kl__alloc(sizeof *join);
    if (!join)
        return kl__fail_memory();
    join->docs = 0;
    int64_t first = index->first;
    kl_rc rc = join_into(index, db, segments, count, join);
    kl__free(join);
    kl__index_start(index, first, index->last_segment);
    return rc;
}

/* ---- Of late ---- */

/* How big a segment is of late: of its documents or postings, whichever fill it more. */
static uint32_t weight_of(const kl__term_segment *segment)
{
    uint32_t by_postings = segment->postings / KL_HISTORY_POSTINGS_PER_DOC;
    return segment->docs > by_postings ? segment->docs : by_postings;
}

/* How many of the latest segments, newest first in `late`, weigh less than `limit`. */
static size_t count_below(const kl__term_segment *late, size_t count, uint32_t limit)
{
    size_t below = 0;
    while (below < count && weight_of(&late[below]) < limit)
        below++;
    return below;
}

static kl_rc list_late(kl__hdb *db, kl__term_segment *late, size_t *ret_count)
{
    sqlite3_stmt *statement;
    bool row;
    size_t count = 0;
    KL_TRY(kl__hdb_use(db, KL_SQL_SEGMENTS_DOWN, &statement));
    sqlite3_bind_int64(statement, 1, INT64_MAX);
    for (; count < LATE; count++) {
        KL_TRY(kl__hdb_step(db, statement, &row));
        if (!row)
            break;
        late[count] = kl__term_segment_row(statement);
    }
    sqlite3_reset(statement);
    *ret_count = count;
    return KL_OK;
}

kl_rc kl__index_settle(kl__index *index, kl__hdb *db)
{
    kl__term_segment late[LATE], run[LATE];
    size_t count, below = 0;
    KL_TRY(list_late(db, late, &count));
    for (uint32_t limit = DOCS_MAX / 2; limit >= FAN && below < FAN; limit /= FAN)
        below = count_below(late, count, limit);
    if (below < FAN)
        return KL_OK;
    /* From the oldest on, as many as make one segment; two always do, unless their numbers are too far apart. */
    size_t taken = 0;
    for (uint32_t weight = 0; taken < below; taken++) {
        run[taken] = late[below - 1 - taken];
        weight += weight_of(&run[taken]);
        if (weight > DOCS_MAX || run[taken].last - run[0].first >= UINT32_MAX)
            break;
    }
    return taken > 1 ? join_segments(index, db, run, taken) : KL_OK;
}

/* ---- Removing documents ---- */

static kl_rc segment_of(kl__hdb *db, int64_t number, kl__term_segment *ret_segment)
{
    sqlite3_stmt *statement;
    bool row;
    KL_TRY(kl__hdb_use(db, KL_SQL_SEGMENTS_DOWN, &statement));
    sqlite3_bind_int64(statement, 1, number);
    KL_TRY(kl__hdb_step(db, statement, &row));
    if (!row)
        return kl__term_segment_damaged(db);
    *ret_segment = kl__term_segment_row(statement);
    sqlite3_reset(statement);
    return number <= ret_segment->last && kl__term_segment_is_sound(ret_segment) ? KL_OK : kl__term_segment_damaged(db);
}

/* The document of this number; docs: there is none. */
static uint32_t doc_of(const kl__term_segment *segment, const uint8_t *numbers, int64_t number)
{
    uint32_t low = 0, high = segment->docs;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (kl__term_segment_number(segment, numbers, middle) < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < segment->docs && kl__term_segment_number(segment, numbers, low) == number ? low : segment->docs;
}

/* Those of the numbers that lie in the segment; says how many. */
static kl_rc remove_here(kl__hdb *db, kl__term_segment *segment, const int64_t *numbers, size_t count,
                         size_t *ret_taken)
{
    uint64_t dead[WORDS];
    const uint8_t *own;
    size_t taken = 0;
    KL_TRY(kl__term_segment_blobs(db, segment, dead, &own));
    uint32_t live = segment->docs;
    for (; taken < count && numbers[taken] <= segment->last; taken++) {
        uint32_t doc = doc_of(segment, own, numbers[taken]);
        if (doc == segment->docs)
            return kl__term_segment_damaged(db);
        dead[doc / 64] |= UINT64_C(1) << doc % 64;
    }
    for (uint32_t word = 0; word < WORDS; word++)
        live -= (uint32_t)__builtin_popcountll(dead[word]);
    segment->live = live;
    *ret_taken = taken;
    return live ? kl__term_segment_set_dead(db, segment, dead) : kl__term_segment_drop(db, segment);
}

static bool fit(const kl__term_segment *a, const kl__term_segment *b)
{
    uint64_t postings = (uint64_t)a->postings * a->live / a->docs + (uint64_t)b->postings * b->live / b->docs;
    return a->live + b->live <= SPARSE && postings <= (uint64_t)SPARSE * KL_HISTORY_POSTINGS_PER_DOC &&
           b->last - a->first < UINT32_MAX;
}

/* Joins a segment that has lost more than half with the one before or behind it, if they fit together. */
static kl_rc join_sparse(kl__index *index, kl__hdb *db, const kl__term_segment *segment, bool *ret_joined)
{
    sqlite3_stmt *statement;
    bool row;
    kl__term_segment pair[2] = {*segment, *segment};
    KL_TRY(kl__hdb_use(db, KL_SQL_SEGMENTS_DOWN, &statement));
    sqlite3_bind_int64(statement, 1, segment->first - 1);
    KL_TRY(kl__hdb_step(db, statement, &row));
    if (row)
        pair[0] = kl__term_segment_row(statement);
    sqlite3_reset(statement);
    *ret_joined = row && kl__term_segment_is_sound(&pair[0]) && fit(&pair[0], &pair[1]);
    if (*ret_joined)
        return join_segments(index, db, pair, 2);
    KL_TRY(kl__hdb_use(db, KL_SQL_SEGMENTS_UP, &statement));
    sqlite3_bind_int64(statement, 1, segment->first);
    KL_TRY(kl__hdb_step(db, statement, &row));
    pair[0] = *segment;
    if (row)
        pair[1] = kl__term_segment_row(statement);
    sqlite3_reset(statement);
    *ret_joined = row && kl__term_segment_is_sound(&pair[1]) && fit(&pair[0], &pair[1]);
    return *ret_joined ? join_segments(index, db, pair, 2) : KL_OK;
}

kl_rc kl__index_remove(kl__index *index, kl__hdb *db, const int64_t *numbers, size_t count)
{
    int joins = 0;
    while (count > 0) {
        kl__term_segment segment;
        size_t taken;
        KL_TRY(segment_of(db, numbers[0], &segment));
        KL_TRY(remove_here(db, &segment, numbers, count, &taken));
        numbers += taken;
        count -= taken;
        bool joined = false;
        if (joins < SPARSE_JOINS_MAX && segment.live && segment.live < segment.docs / 2)
            KL_TRY(join_sparse(index, db, &segment, &joined));
        joins += joined;
    }
    return KL_OK;
}
