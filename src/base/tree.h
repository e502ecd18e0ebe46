/* tree.h - an ordered set whose nodes live inside their owners: a treap.
 *
 * Insert, remove and first take O(log n) steps, expected over the nodes' addresses, which stand in for the random
 * weights: nothing is stored but two links, and no single call is slow, as the first pop of a pairing heap would be. */
#ifndef KL_TREE_H
#define KL_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kl__tree_node {
    struct kl__tree_node *left, *right;
} kl__tree_node;

/* A strict total order: no two nodes of one tree are equal. */
typedef bool kl__tree_less(const kl__tree_node *a, const kl__tree_node *b);

/* Addresses are often a whole number of steps apart. A single multiplication would leave the weights so, and the tree
 * some times as deep. */
static inline uint64_t kl__tree_weight(const kl__tree_node *node)
{
    uint64_t weight = (uint64_t)(uintptr_t)node * 0x9e3779b97f4a7c15u;
    weight = (weight ^ (weight >> 32)) * 0xd6e8feb86659fd93u;
    return weight ^ (weight >> 32);
}

static inline kl__tree_node *kl__tree_first(kl__tree_node *root)
{
    while (root && root->left)
        root = root->left;
    return root;
}

static inline void kl__tree_insert(kl__tree_node **link, kl__tree_node *node, kl__tree_less *less)
{
    while (*link && kl__tree_weight(*link) >= kl__tree_weight(node))
        link = less(node, *link) ? &(*link)->left : &(*link)->right;
    kl__tree_node *rest = *link, **left = &node->left, **right = &node->right;
    *link = node;
    while (rest) { /* what was here is split around the node */
        if (less(rest, node)) {
            *left = rest;
            left = &rest->right;
            rest = rest->right;
        } else {
            *right = rest;
            right = &rest->left;
            rest = rest->left;
        }
    }
    *left = *right = NULL;
}

/* The node must be in the tree. */
static inline void kl__tree_remove(kl__tree_node **link, kl__tree_node *node, kl__tree_less *less)
{
    while (*link != node)
        link = less(node, *link) ? &(*link)->left : &(*link)->right;
    kl__tree_node *left = node->left, *right = node->right;
    while (left && right) {
        if (kl__tree_weight(left) >= kl__tree_weight(right)) {
            *link = left;
            link = &left->right;
            left = left->right;
        } else {
            *link = right;
            link = &right->left;
            right = right->left;
        }
    }
    *link = left ? left : right;
}

#endif
