/* find.c - the lanes themselves: from a key to its lane, and where a lane's memory comes from and goes to.
 *
 * From and to: lanes.c, which says what happens in a lane.
 *
 *      (no memory) --make--> in the table, busy <--> resting --make room--> spare, to be made again | freed
 *
 * L5 of lanes.c is kept here. */
#include <string.h>

#include "base/fetch.h"
#include "lanes/inside.h"

/* --- Finding --- */

/* memcmp for the lengths that most keys have, without the call. */
static inline bool same_bytes(const char *a, const char *b, size_t len)
{
    uint64_t x, y, z, w;
    if (len < 8 || len > 16)
        return memcmp(a, b, len) == 0;
    memcpy(&x, a, 8);
    memcpy(&y, b, 8);
    memcpy(&z, a + len - 8, 8);
    memcpy(&w, b + len - 8, 8);
    return x == y && z == w;
}

static inline kl__lane *find_lane(const kl__lanes *lanes, kl_bytes key, uint32_t hash)
{
    if (key.len == 0)
        return (kl__lane *)&lanes->crowd;
    for (kl__keytable_entry *entry = kl__keytable_first(&lanes->table, hash); entry; entry = entry->next) {
        kl__lane *lane = (kl__lane *)entry;
        if (entry->hash == hash && lane->key_len == key.len && same_bytes(key_of(lane).data, key.data, key.len))
            return lane;
    }
    return NULL;
}

kl__lane *kl__lanes_find(const kl__lanes *lanes, const kl__lane_key *key)
{
    return find_lane(lanes, key->bytes, key->hash);
}

kl__lane *kl__lanes_lane(kl__lanes *lanes, kl_bytes key, uint32_t hash)
{
    kl__lane *lane = find_lane(lanes, key, hash);
    return KL_LIKELY(lane != NULL) ? lane : kl__lanes_make(lanes, &(kl__lane_key){key, hash}, NULL);
}

kl__lane *kl__lanes_lane_giving(kl__lanes *lanes, char **far, size_t len, uint32_t hash)
{
    kl__lane_key key = {{*far, len}, hash};
    kl__lane *lane = kl__lanes_find(lanes, &key);
    return lane ? lane : kl__lanes_make(lanes, &key, far);
}

void kl__lanes_prefetch(const kl__lanes *lanes, uint32_t hash)
{
    kl__fetch(kl__keytable_bucket_of(&lanes->table, hash));
}

void kl__lanes_prefetch_lane(const kl__lanes *lanes, uint32_t hash)
{
    kl__fetch(kl__keytable_first(&lanes->table, hash));
}

/* --- Making and freeing --- */

static void drop_key(kl__lane *lane)
{
    if (lane->key_len > KEY_INLINE_BYTES)
        kl__free(lane->key_far);
}

static void spare_lane(kl__lanes *lanes, kl__lane *lane)
{
    drop_key(lane);
    if (lanes->spare_count == SPARE_MAX) {
        kl__free(lane);
        return;
    }
    lane->next_resting = lanes->spare;
    lanes->spare = lane;
    lanes->spare_count++;
}

void kl__lanes_make_room(kl__lanes *lanes)
{
    kl__lane *lane = lanes->first_resting;
    lanes->first_resting = lane->next_resting;
    if (lanes->first_resting) { /* the next one to be looked at has left the caches */
        kl__fetch(lanes->first_resting);
        kl__fetch(&lanes->first_resting->next_resting);
    }
    lanes->resting_count--;
    lane->resting = false;
    if (lane->state == KL_LANE_IDLE && lane->entry.tasks == 0) {
        kl__keytable_remove(&lanes->table, &lane->entry);
        spare_lane(lanes, lane);
    }
}

/* Its memory, with anything in it; NULL: there is none. Without memory, lanes of idle keys are used again: as one was
 * made at the start, at least one key can always go on. */
static kl__lane *new_lane(kl__lanes *lanes)
{
    kl__lane *lane = NULL;
    if (!lanes->spare && (lane = kl__alloc_aligned(KL_CACHE_LINE, 1, sizeof *lane)))
        return lane;
    while (!lanes->spare && lanes->first_resting && !lanes->visiting)
        kl__lanes_make_room(lanes);
    if (!(lane = lanes->spare))
        return NULL;
    lanes->spare = lane->next_resting;
    lanes->spare_count--;
    return lane;
}

kl__lane *kl__lanes_make(kl__lanes *lanes, const kl__lane_key *key, char **far)
{
    KL_ASSERT(key->bytes.len <= KL_KEY_BYTES_MAX);
    bool is_long = key->bytes.len > KEY_INLINE_BYTES;
    char *own = NULL;
    if (is_long && !far && !(own = kl__alloc(key->bytes.len)))
        return NULL;
    kl__lane *lane = new_lane(lanes);
    if (!lane) {
        kl__free(own);
        return NULL;
    }
    *lane = (kl__lane){.entry.hash = key->hash, .key_len = (uint16_t)key->bytes.len, .wake_ms = KL_NEVER};
    if (is_long && far) {
        lane->key_far = *far;
        *far = NULL;
    } else {
        if (own)
            lane->key_far = own;
        memcpy(own ? own : lane->key, key->bytes.data, key->bytes.len);
    }
    kl__keytable_insert(&lanes->table, &lane->entry);
    rest(lanes, lane);
    return lane;
}

/* --- All of them --- */

kl__lanes *kl__lanes_open(void)
{
    kl__lanes *lanes = kl__alloc_aligned(KL_CACHE_LINE, 1, sizeof *lanes);
    kl__lane *first = kl__alloc_aligned(KL_CACHE_LINE, 1, sizeof *first);
    if (!lanes || !first) {
        kl__free(lanes);
        kl__free(first);
        return NULL;
    }
    spare_lane(lanes, first);
    lanes->resting_max = RESTING_MAX;
    lanes->now_ms = INT64_MIN;
    lanes->next_due = KL_NEVER;
    lanes->crowd.odd = ODD_CROWD;
    lanes->crowd.wake_ms = KL_NEVER;
    kl__keytable_init(&lanes->table);
    return lanes;
}

void kl__lanes_rest_few(kl__lanes *lanes) { lanes->resting_max = RESTING_FEW; }

void kl__lanes_close(kl__lanes *lanes)
{
    if (!lanes)
        return;
    for (uint32_t i = 0; i < lanes->table.buckets; i++) {
        kl__keytable_entry *next, *entry = kl__keytable_at(&lanes->table, i)->first;
        for (; entry; entry = next) {
            next = entry->next;
            drop_key((kl__lane *)entry);
            kl__free(entry);
        }
    }
    kl__keytable_close(&lanes->table);
    while (lanes->spare)
        kl__free(new_lane(lanes));
    kl__free(lanes);
}
