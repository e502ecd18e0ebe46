/* test_disk_reserve.c - a full disk is given back what was reserved, so that the store opens there (reserve.h). */
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk_rig.h"
#include "store/disk/disk.h"
#include "store/disk/reserve.h"

/* The machine's file system, with as much room as the test says. */
static _Atomic(uint64_t) room_left, block_bytes;

static int tell_room(kl__vfs *vfs, const char *path, uint64_t *ret_bytes, uint64_t *ret_block)
{
    (void)vfs, (void)path;
    *ret_bytes = atomic_load(&room_left);
    *ret_block = atomic_load(&block_bytes);
    return 0;
}

struct place {
    char dir[WORKDIR_BYTES], data[WORKDIR_BYTES + 8], reserve[WORKDIR_BYTES + 32];
    kl__vfs vfs;
    kl_store *store;
};

static bool begin(struct place *place, uint64_t room)
{
    memset(place, 0, sizeof *place);
    place->vfs = kl__vfs_system;
    place->vfs.room = tell_room;
    atomic_store(&room_left, room);
    atomic_store(&block_bytes, 4096);
    if (!workdir_make(place->dir))
        return false;
    snprintf(place->data, sizeof place->data, "%s/data", place->dir);
    snprintf(place->reserve, sizeof place->reserve, "%s/reserve", place->data);
    return true;
}

static void open_it(struct place *place)
{
    kl_store_opts opts = {.size = sizeof opts, .segment_bytes = RIG_SEGMENT, .no_socket = true};
    CHECK_OK(kl__disk_open_on(&place->vfs, place->data, &opts, &place->store));
}

static void close_it(struct place *place)
{
    kl_store_close(place->store);
    place->store = NULL;
}

/* 0: there is none. */
static uint64_t reserved(const struct place *place)
{
    struct stat about;
    return stat(place->reserve, &about) == 0 ? (uint64_t)about.st_blocks * 512 : 0;
}

static bool is_reserved(void *ctx) { return reserved(ctx) >= KL_RESERVE_BYTES; }

TEST(room_is_reserved_when_there_is_much_and_given_back_to_open_on_a_full_disk)
{
    struct place place;
    REQUIRE(begin(&place, UINT64_C(1) << 30));
    open_it(&place);
    close_it(&place);
    CHECK(is_reserved(&place));
    atomic_store(&room_left, 0);
    open_it(&place);
    CHECK_INT(reserved(&place), 0);
    close_it(&place);
    CHECK_INT(reserved(&place), 0); /* somebody else has it now */
    open_it(&place);
    atomic_store(&room_left, KL_RESERVE_BYTES); /* what SQLite gives back when it is closed */
    close_it(&place);
    CHECK(is_reserved(&place));
    CHECK(workdir_remove(place.dir));
}

TEST(the_reserve_is_taken_again_when_there_is_room_again)
{
    struct place place;
    REQUIRE(begin(&place, 0));
    open_it(&place);
    CHECK_INT(reserved(&place), 0);
    atomic_store(&room_left, UINT64_C(1) << 30);
    CHECK(rig_await(is_reserved, &place, "upkeep to take it"));
    CHECK_INT(truncate(place.reserve, 10), 0); /* as a kill may leave it */
    CHECK(rig_await(is_reserved, &place, "upkeep to make it whole"));
    close_it(&place);
    CHECK(workdir_remove(place.dir));
}

TEST(a_store_that_is_refused_takes_no_reserve)
{
    struct place place;
    char path[WORKDIR_BYTES + 64];
    REQUIRE(begin(&place, UINT64_C(1) << 30));
    open_it(&place);
    close_it(&place);
    CHECK_INT(unlink(place.reserve), 0);
    snprintf(path, sizeof path, "%s/journal", place.data);
    CHECK(workdir_remove(path));
    kl_store_opts opts = {.size = sizeof opts, .segment_bytes = RIG_SEGMENT, .no_socket = true};
    CHECK_INT(kl__disk_open_on(&place.vfs, place.data, &opts, &place.store), KL_EDAMAGED);
    CHECK_INT(reserved(&place), 0);
    CHECK(workdir_remove(place.dir));
}

/* SQLite would be ended by a signal there. */
TEST(a_full_disk_of_small_blocks_is_refused_until_there_is_some_room)
{
    struct place place;
    REQUIRE(begin(&place, 0));
    open_it(&place);
    close_it(&place);
    atomic_store(&block_bytes, 1024);
    kl_store_opts opts = {.size = sizeof opts, .segment_bytes = RIG_SEGMENT, .no_socket = true};
    CHECK_INT(kl__disk_open_on(&place.vfs, place.data, &opts, &place.store), KL_EFULL);
    CHECK_CONTAINS(kl_error_text(), "make 64 KiB of room");
    atomic_store(&room_left, 64 << 10);
    open_it(&place);
    close_it(&place);
    CHECK(workdir_remove(place.dir));
}
