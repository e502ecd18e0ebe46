/* test_left.c - what a worker leaves behind, where the store does not say. */
#include "cli/work.h"
#include "harness.h"
#include "keyline/keyline.h"
#include "store/lossy.h"

TEST(what_is_left_cannot_be_told_while_the_store_does_not_answer)
{
    struct lossy lossy;
    kl_store *memory = NULL, *store = NULL;
    kl_queue *queue = NULL;
    kl_arena arena = {0};
    kl_put put = {.payload = kl_str("x")};
    uint64_t left = 7;
    const char *why = NULL, *away = NULL;
    REQUIRE(kl_store_open("memory:", NULL, &memory) == KL_OK);
    REQUIRE(lossy_open(&lossy, memory, 1, &store) == KL_OK);
    lossy.replies_lost = lossy.requests_lost = 0;
    REQUIRE(kl_queue_open(store, "orders", NULL, &queue) == KL_OK);
    CHECK_INT(kl_queue_put(queue, &put, 1, (kl_bytes){0}, NULL), KL_OK);
    kl_worker_queue served = {.queue = queue};
    CHECK(kl__work_left(&served, &arena, &left, &why, &away));
    CHECK_INT(left, 1);
    CHECK(!away);
    lossy.down = true;
    CHECK(!kl__work_left(&served, &arena, &left, &why, &away));
    CHECK_INT(left, 0);
    CHECK(!why);
    CHECK_CONTAINS(away ? away : "", "what is left cannot be told");
    CHECK_CONTAINS(away ? away : "", "no answer has come");
    kl_arena_free(&arena);
    kl_queue_close(queue);
    kl_store_close(store);
    kl_store_close(memory);
}
