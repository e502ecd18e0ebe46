#include <keyline/keyline.h>
#include <stdio.h>

/* Fails the first time, as payment services do; the customer's next invoice waits until this one is through. */
static kl_outcome charge(kl_run *run, void *invoice)
{
    printf("%s, attempt %u\n", (const char *)invoice, (unsigned)kl_run_attempt(run));
    return kl_run_attempt(run) == 1 ? KL_RETRY : KL_DONE;
}

int main(void)
{
    kl_exec *exec;
    if (kl_exec_open(NULL, &exec) != KL_OK ||
        kl_exec_submit(exec, kl_str("customer-7"), charge, "invoice 1", NULL, NULL) != KL_OK ||
        kl_exec_submit(exec, kl_str("customer-7"), charge, "invoice 2", NULL, NULL) != KL_OK ||
        kl_exec_drain(exec, KL_FOREVER) != KL_OK) {
        fprintf(stderr, "%s\n", kl_error_text());
        return 1;
    }
    kl_exec_close(exec);
    return 0;
}
