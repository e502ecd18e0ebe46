/* test_neglect.c - a task that blocks, blocks nobody else, although no other thread ever runs out of work.
 *
 * test_hands.c has threads that find nothing to do and look after the others. Here one always has something: a chain of
 * tasks of which each submits the next. */
#include "exec/support.h"

enum { OTHER_KEYS = 6 };

struct chain {
    kl_exec *exec;
    const char *key;
    struct gate begin;
    atomic_bool over;
    atomic_uint_fast64_t links;
};

static kl_outcome go_on(kl_run *run, void *ctx)
{
    struct chain *chain = ctx;
    (void)run;
    atomic_fetch_add(&chain->links, 1);
    if (!atomic_load(&chain->over))
        submit(chain->exec, chain->key, go_on, chain, NULL);
    return KL_DONE;
}

static kl_outcome begin_chain(kl_run *run, void *ctx)
{
    struct chain *chain = ctx;
    gate_pass(&chain->begin);
    return go_on(run, ctx);
}

/* Keys of the hand's shard, and for the chain one of the same or of another. */
struct keys {
    char hand[OTHER_KEYS + 2][16];
    char chain[16];
};

static void find_keys(kl_exec *exec, bool same_shard, struct keys *ret_keys)
{
    uint64_t hash;
    int found = 0;
    bool has_chain = false;
    for (int i = 0; found < OTHER_KEYS + 2 || !has_chain; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        bool is_first = kl__exec_shard_of(exec, kl_str(key), &hash)->index == 0;
        if (!has_chain && is_first == same_shard) {
            memcpy(ret_keys->chain, key, sizeof key);
            has_chain = true;
        } else if (is_first && found < OTHER_KEYS + 2) {
            memcpy(ret_keys->hand[found++], key, sizeof key);
        }
    }
}

/* One thread takes all of a hand and blocks in the middle of it, while the other goes on with the chain. */
static void block_beside_chain(bool same_shard)
{
    struct gate dealer = GATE, block = GATE;
    struct tally done = TALLY;
    struct keys keys;
    struct chain chain = {.begin = GATE};
    kl_exec *exec = chain.exec = open_frozen(OPTS(.threads = 2, .shards = 2));
    REQUIRE(exec != NULL);
    find_keys(exec, same_shard, &keys);
    chain.key = keys.chain;
    grow_hands(exec);
    submit(exec, keys.chain, begin_chain, &chain, NULL);
    gate_await(&chain.begin, 1);
    submit(exec, keys.hand[OTHER_KEYS + 1], hold, &dealer, NULL);
    gate_await(&dealer, 1);
    for (int i = 0; i < OTHER_KEYS + 1; i++)
        submit(exec, keys.hand[i], i == OTHER_KEYS / 2 ? hold : add_one, i == OTHER_KEYS / 2 ? (void *)&block : &done,
               NULL);
    gate_open(&dealer);
    gate_await(&block, 1);
    gate_open(&chain.begin);
    submit(exec, keys.hand[0], add_one, &done, NULL); /* what its key did before is done, but still in the hand */
    pass_ms(exec, 100);
    tally_await(&done, OTHER_KEYS + 1);
    uint64_t links = atomic_load(&chain.links);
    AWAIT(atomic_load(&chain.links) > links); /* and the other thread had something to do all the time */
    atomic_store(&chain.over, true);
    AWAIT(tasks_live(exec) == 1); /* the last of the chain submits nothing to an executor that is being closed */
    gate_open(&block);
    kl_exec_close(exec);
}

TEST(a_task_that_blocks_blocks_no_other_key_of_its_hand_while_other_threads_are_busy_in_the_same_shard)
{
    block_beside_chain(true);
}

TEST(a_task_that_blocks_blocks_no_other_key_of_its_hand_while_other_threads_are_busy_in_another_shard)
{
    block_beside_chain(false);
}
