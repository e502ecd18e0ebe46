/* peer_lmdb.c - tasks in LMDB: a group is put in one transaction and deleted in another.
 *
 * Default durability: every commit is synced. A key is the shard's byte and the position, big-endian, so that a shard's
 * tasks stand in order. Transactions that write follow one another, whatever thread they are of. */
#include <lmdb.h>

#include "bench.h"

#define MAP_BYTES ((size_t)1 << 30) /* the file grows only as needed */

static MDB_env *env;
static MDB_dbi tasks;
static uint64_t appended[PAIRS_MAX], settled[PAIRS_MAX]; /* positions: of the first task that is not yet */

static void must(int rc) { MUST_SAYING(rc == 0, mdb_strerror(rc)); }

static MDB_txn *begin(void)
{
    MDB_txn *txn;
    must(mdb_txn_begin(env, NULL, 0, &txn));
    return txn;
}

static void open_lmdb(const struct settings *settings)
{
    must(mdb_env_create(&env));
    must(mdb_env_set_mapsize(env, MAP_BYTES));
    must(mdb_env_open(env, path_in(settings, "tasks.mdb"), MDB_NOSUBDIR, 0666));
    MDB_txn *txn = begin();
    must(mdb_dbi_open(txn, NULL, 0, &tasks));
    must(mdb_txn_commit(txn));
    for (uint64_t i = 0; i < PAIRS_MAX; i++)
        appended[i] = settled[i] = (i << 60) + (uint64_t)now_ns(); /* goes up from run to run */
}

enum { KEY_BYTES = 9 };

static MDB_val key_of(uint64_t position, unsigned char key[KEY_BYTES])
{
    uint64_t big_endian = __builtin_bswap64(position);
    key[0] = (unsigned char)(position % SHARDS);
    memcpy(key + 1, &big_endian, sizeof big_endian);
    return (MDB_val){KEY_BYTES, key};
}

static void append_lmdb(int pair, size_t count)
{
    MDB_txn *txn = begin();
    for (size_t i = 0; i < count; i++) {
        unsigned char bytes[KEY_BYTES];
        MDB_val key = key_of(appended[pair] + i, bytes), value = {sizeof payload, payload};
        must(mdb_put(txn, tasks, &key, &value, MDB_NOOVERWRITE));
    }
    must(mdb_txn_commit(txn));
    appended[pair] += count;
}

static void settle_lmdb(int pair, size_t count)
{
    MDB_txn *txn = begin();
    for (size_t i = 0; i < count; i++) {
        unsigned char bytes[KEY_BYTES];
        MDB_val key = key_of(settled[pair] + i, bytes);
        must(mdb_del(txn, tasks, &key, NULL));
    }
    must(mdb_txn_commit(txn));
    settled[pair] += count;
}

static void close_lmdb(void) { mdb_env_close(env); }

static const struct mode modes[] = {{0}};

const struct side side = {.name = "lmdb",
                          .open = open_lmdb,
                          .append = append_lmdb,
                          .settle = settle_lmdb,
                          .close = close_lmdb,
                          .modes = modes};
