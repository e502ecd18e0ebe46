/* fuzz_claim.c - tokens of claims: a token is written in one way only, so what is read is written again the same. */
#include "fuzz.h"
#include "work/claims_inside.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = fuzz_copy(data, size), server[24], text[KL_CLAIM_TOKEN_BYTES];
    kl_bytes token = {copy, size};
    kl__token read;
    bool can = kl__token_read(token, &read);
    HOLDS(kl__claim_token_server(token, server) == can);
    if (can) {
        kl__token_write(server, &read, text);
        HOLDS(strlen(text) == size && memcmp(text, data, size) == 0);
    }
    free(copy);
    return 0;
}
