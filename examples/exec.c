/* exec.c - order within a key and a retry, with three keys in parallel.
 *
 *     cc exec.c $(pkg-config --cflags --libs keyline) -o exec && ./exec
 *
 * Tasks of one key never overlap: a customer's tasks may use its memory without a lock. */
#include <keyline/keyline.h>
#include <stdio.h>

enum { STEPS = 4, STORY_BYTES = 64 };

struct customer {
    const char *name;
    char story[STORY_BYTES];
    size_t used;
    int done;
};

/* Bob's second step fails twice. His later steps wait for it; Ann and Eve wait for nobody. */
static kl_outcome step(kl_run *run, void *ctx)
{
    struct customer *customer = ctx;
    bool fails = strcmp(customer->name, "bob") == 0 && customer->done == 1 && kl_run_attempt(run) < 3;
    customer->used += (size_t)snprintf(customer->story + customer->used, STORY_BYTES - customer->used, " %d%s",
                                       customer->done + 1, fails ? "(failed)" : "");
    customer->done += !fails;
    return fails ? KL_RETRY : KL_DONE;
}

int main(void)
{
    struct customer customers[] = {{.name = "ann"}, {.name = "bob"}, {.name = "eve"}};
    kl_exec_opts opts = {.size = sizeof opts, .threads = 3, .backoff_base_ms = 5};
    kl_exec *exec;
    kl_rc rc = kl_exec_open(&opts, &exec);
    for (int i = 0; rc == KL_OK && i < 3 * STEPS; i++)
        rc = kl_exec_submit(exec, kl_str(customers[i % 3].name), step, &customers[i % 3], NULL, NULL);
    if (rc == KL_OK)
        rc = kl_exec_drain(exec, KL_FOREVER);
    if (rc != KL_OK) {
        fprintf(stderr, "%s\n", kl_error_text());
        return 1;
    }
    kl_exec_close(exec);
    for (int i = 0; i < 3; i++)
        printf("%s:%s\n", customers[i].name, customers[i].story);
    return 0;
}
