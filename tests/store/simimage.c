/* simimage.c - what may be found on a simulated disk after power was lost.
 *
 * The unsynced operations are cut into pieces, the outcome chooses which of them remain and in which order, and
 * those are done to a copy of what is durable. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/random.h"
#include "simdisk_inside.h"

/* An operation, or the part of a write's bytes that lies in one page. */
struct piece {
    const struct sim_op *op;
    size_t from, count; /* of its bytes */
};

/* What is being found: the durable state, with the pieces that remain. */
struct image {
    simdisk *disk; /* whose power was lost */
    struct sim_names names;
    struct sim_pages *pages; /* of each file that was touched, by node */
    bool *touched;
};

static struct sim_pages *touch(struct image *image, size_t node)
{
    if (!image->touched[node]) {
        image->touched[node] = true;
        sim_pages_copy(&image->pages[node], &image->disk->nodes[node]->durable);
    }
    return &image->pages[node];
}

static void keep(struct image *image, const struct piece *piece)
{
    const struct sim_op *op = piece->op;
    if (sim_op_names(op))
        sim_names_apply(&image->names, op);
    else if (op->kind == OP_TRUNCATE)
        sim_pages_truncate(touch(image, op->node), op->offset);
    else
        sim_pages_write(touch(image, op->node), op->bytes + piece->from, piece->count, op->offset + piece->from);
}

static struct piece whole(const struct sim_op *op) { return (struct piece){op, 0, op->count}; }

static void keep_first(struct image *image, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct piece piece = whole(image->disk->unsynced.list[i]);
        keep(image, &piece);
    }
}

/* Pages are written back each on its own and in any order, whatever calls made them dirty. */
static size_t cut_pages(const struct sim_ops *ops, struct piece **ret_pieces)
{
    size_t room = 0, count = 0;
    for (size_t i = 0; i < ops->count; i++)
        room += ops->list[i]->count / SIM_PAGE_BYTES + 2;
    struct piece *pieces = sim_alloc(room * sizeof *pieces);
    for (size_t i = 0; i < ops->count; i++) {
        const struct sim_op *op = ops->list[i];
        if (op->kind != OP_WRITE)
            pieces[count++] = whole(op);
        for (size_t from = 0; op->kind == OP_WRITE && from < op->count;) {
            size_t left = SIM_PAGE_BYTES - (size_t)((op->offset + from) % SIM_PAGE_BYTES);
            size_t part = left < op->count - from ? left : op->count - from;
            pieces[count++] = (struct piece){op, from, part};
            from += part;
        }
    }
    KL_ASSERT(count <= room);
    *ret_pieces = pieces;
    return count;
}

static void shuffle(struct piece *pieces, size_t count, uint64_t *random)
{
    for (size_t i = count; i > 1; i--) {
        size_t j = (size_t)kl__random_below(random, i);
        struct piece piece = pieces[i - 1];
        pieces[i - 1] = pieces[j];
        pieces[j] = piece;
    }
}

/* Each piece with the same chance, which itself is 1/4, 1/2 or 3/4. */
static void keep_some(struct image *image, bool reordered, uint64_t *random)
{
    struct piece *pieces;
    size_t count = cut_pages(&image->disk->unsynced, &pieces);
    uint64_t chance = 1 + kl__random_below(random, 3);
    if (reordered)
        shuffle(pieces, count, random);
    for (size_t i = 0; i < count; i++)
        if (kl__random_below(random, 4) < chance)
            keep(image, &pieces[i]);
    free(pieces);
}

/* One of the unsynced writes, or where they end when there is none. */
static size_t choose_write(const struct sim_ops *ops, uint64_t *random)
{
    size_t writes = 0, chosen = ops->count;
    for (size_t i = 0; i < ops->count; i++)
        if (ops->list[i]->kind == OP_WRITE && kl__random_below(random, ++writes) == 0)
            chosen = i;
    return chosen;
}

/* Everything before one write, and of that write what lies before a multiple of the unit. */
static void keep_torn(struct image *image, uint64_t unit, uint64_t *random)
{
    size_t chosen = choose_write(&image->disk->unsynced, random);
    keep_first(image, chosen);
    if (chosen == image->disk->unsynced.count)
        return;
    struct piece piece = whole(image->disk->unsynced.list[chosen]);
    uint64_t start = piece.op->offset, end = start + piece.count;
    uint64_t first = (start / unit + 1) * unit, cuts = first < end ? (end - 1 - first) / unit + 1 : 0;
    uint64_t cut = cuts ? first + unit * kl__random_below(random, cuts) : kl__random_below(random, 2) ? end : start;
    piece.count = (size_t)(cut - start);
    if (piece.count)
        keep(image, &piece);
}

/* Everything before one write, and of that write some bytes and then noise up to where it would have ended. */
static void keep_garbage(struct image *image, uint64_t *random)
{
    size_t chosen = choose_write(&image->disk->unsynced, random);
    keep_first(image, chosen);
    if (chosen == image->disk->unsynced.count)
        return;
    struct piece piece = whole(image->disk->unsynced.list[chosen]);
    size_t good = (size_t)kl__random_below(random, piece.count), bad = piece.count - good;
    keep(image, &piece);
    uint8_t *noise = sim_alloc(bad);
    for (size_t i = 0; i < bad; i++)
        noise[i] = (uint8_t)kl__random_next(random);
    sim_pages_write(touch(image, piece.op->node), noise, bad, piece.op->offset + good);
    free(noise);
}

static void choose(struct image *image, simdisk_outcome outcome, uint64_t *random)
{
    size_t count = image->disk->unsynced.count;
    switch (outcome) {
    case SIM_NOTHING:
        return;
    case SIM_ALL:
        keep_first(image, count);
        return;
    case SIM_PREFIX:
        keep_first(image, (size_t)kl__random_below(random, count + 1));
        return;
    case SIM_SUBSET:
    case SIM_REORDERED:
        keep_some(image, outcome == SIM_REORDERED, random);
        return;
    case SIM_TORN_512:
        keep_torn(image, 512, random);
        return;
    case SIM_TORN_4K:
        keep_torn(image, 4096, random);
        return;
    case SIM_GARBAGE:
        keep_garbage(image, random);
        return;
    case SIM_OUTCOMES:
        break;
    }
    KL_ASSERT(!"an outcome");
}

static bool has_parent(const struct sim_names *names, const char *path)
{
    for (size_t i = 0; i < names->count; i++)
        if (sim_path_inside(path, names->list[i].path))
            return true;
    return false;
}

/* A directory whose own name was lost takes everything below it along. */
static void drop_orphans(struct sim_names *names)
{
    for (bool again = true; again;) {
        again = false;
        for (size_t i = names->count; i-- > 0;)
            if (strcmp(names->list[i].path, "/") != 0 && strcmp(names->list[i].path, ".") != 0 &&
                !has_parent(names, names->list[i].path)) {
                sim_names_remove(names, i);
                again = true;
            }
    }
}

/* Numbers the files that have a name anew. */
static simdisk *build(struct image *image)
{
    simdisk *found = simdisk_new();
    sim_names_free(&found->seen);
    sim_names_free(&found->durable);
    found->seen = image->names;
    found->durable = (struct sim_names){0};
    for (size_t i = 0; i < image->names.count; i++) {
        size_t old = image->names.list[i].node, node = sim_node_add(found, image->disk->nodes[old]->directory);
        const struct sim_pages *pages = image->touched[old] ? &image->pages[old] : &image->disk->nodes[old]->durable;
        sim_pages_copy(&found->nodes[node]->seen, pages);
        sim_pages_copy(&found->nodes[node]->durable, pages);
        image->names.list[i].node = node;
    }
    sim_names_copy(&found->durable, &found->seen);
    return found;
}

simdisk *simdisk_image(simdisk *disk, simdisk_outcome outcome, uint64_t seed)
{
    uint64_t random = seed;
    pthread_mutex_lock(&disk->mutex);
    struct image image = {.disk = disk};
    image.pages = sim_alloc(disk->node_count * sizeof *image.pages);
    image.touched = sim_alloc(disk->node_count * sizeof *image.touched);
    sim_names_copy(&image.names, &disk->durable);
    choose(&image, outcome, &random);
    drop_orphans(&image.names);
    simdisk *found = build(&image);
    for (size_t i = 0; i < disk->node_count; i++)
        sim_pages_free(&image.pages[i]);
    free(image.pages);
    free(image.touched);
    pthread_mutex_unlock(&disk->mutex);
    return found;
}
