/* test_conformance_memory.c - the memory engine keeps the contract. */
#include "store/conformance.h"

static kl_rc open_memory(const kl_store_opts *opts, void **ret_place, kl_store **ret_store)
{
    *ret_place = NULL;
    return kl_store_open("memory:", opts, ret_store);
}

static void leave_nothing(void *place) { (void)place; }

const struct subject subject = {
    .name = "memory", .clocked = true, .trims = true, .open = open_memory, .destroy = leave_nothing};
