/* test_tree.c - a tree stays flat wherever its nodes lie. */
#include "base/tree.h"

#include <stdlib.h>

#include "harness.h"

enum { NODES = 20000, DEPTH_MAX = 80 }; /* of random trees of so many nodes the deepest have some 45 levels */

static bool lies_before(const kl__tree_node *a, const kl__tree_node *b) { return (uintptr_t)a < (uintptr_t)b; }

static int depth_of(const kl__tree_node *node)
{
    if (!node)
        return 0;
    int left = depth_of(node->left), right = depth_of(node->right);
    return 1 + (left > right ? left : right);
}

TEST(a_tree_of_nodes_that_lie_at_equal_distances_is_not_deep)
{
    for (size_t stride = 16; stride <= 512; stride += 16) {
        char *room = aligned_alloc(4096, (NODES * stride + 4095) / 4096 * 4096);
        REQUIRE(room != NULL);
        kl__tree_node *root = NULL;
        for (size_t i = 0; i < NODES; i++) {
            kl__tree_node *node = (kl__tree_node *)(void *)(room + i * stride);
            *node = (kl__tree_node){0};
            kl__tree_insert(&root, node, lies_before);
        }
        int depth = depth_of(root);
        if (depth > DEPTH_MAX)
            test_fail(__FILE__, __LINE__, "%d levels at a distance of %zu", depth, stride);
        free(room);
    }
}
