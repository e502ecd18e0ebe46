/* api_store.c - GET /v1/store: the store itself over a connection, for --store http://... (store/socket/remote.c).
 *
 * The connection is upgraded and handed to the server of the socket's protocol. Whoever speaks it may do anything to
 * the store, so it takes a token with the role admin and no scope. */
#include <strings.h>

#include "net/routes.h"
#include "net/server.h"
#include "store/socket/socket.h"

enum { QUEUES_PAGE = 200 };

static const char protocol[] = "keyline-store";

static bool may_stay(void *context, const void *who)
{
    const kl__api *api = context;
    return kl__access_holds(api->tokens, who);
}

void kl__api_store_recheck(kl__api *api) { kl__server_cut(api->stores, may_stay, api); }

void kl__api_store_left(void *context, const void *who)
{
    const kl__api *api = context;
    kl__audit_note_left(api->audit, who);
}

void kl__api_store_made(void *context, const void *who, const kl__made *made)
{
    const kl__api *api = context;
    kl__audit_note_made(api->audit, who, made);
}

/* The exchange is over, and its memory still there. A token that was taken away meanwhile may have been looked for
 * among the connections just before this was one. */
static void taken(void *context, int fd)
{
    const kl__exchange *exchange = context;
    kl__api *api = exchange->api;
    const char *who = exchange->who;
    if (fd < 0)
        return;
    kl__server_adopt(api->stores, fd, who);
    if (!kl__access_holds(api->tokens, who))
        kl__api_store_recheck(api);
}

/* Partitions become known to the store's handle when their queue is opened. */
static kl_rc know_queues(kl__exchange *exchange)
{
    const char *names[QUEUES_PAGE], *after = "";
    size_t count = QUEUES_PAGE;
    kl_rc rc = KL_OK;
    while (rc == KL_OK && count == QUEUES_PAGE) {
        rc = kl_queue_list(exchange->store, after, QUEUES_PAGE, exchange->arena, names, &count);
        for (size_t i = 0; rc == KL_OK && i < count; i++) {
            kl__open_queue *open = NULL;
            kl_rc opened = kl__queues_open(exchange->api, names[i], false, &open);
            rc = opened == KL_ENOTFOUND ? KL_OK : opened;
            kl__queues_leave(open);
        }
        after = count ? names[count - 1] : after;
    }
    return rc;
}

void kl__api_store(kl__exchange *exchange)
{
    kl__request *request = exchange->request;
    kl_bytes upgrade = kl__head_field(&request->head, "upgrade");
    if (kl__params_refused(exchange))
        return;
    if (upgrade.len != sizeof protocol - 1 || strncasecmp(upgrade.data, protocol, upgrade.len) != 0) {
        kl__reply_problem(exchange, 426, "upgrade-required",
                          "this is for `keyline ... --store http://...`, which sends Upgrade: %s", protocol);
        return;
    }
    if (!kl__token_may_all(exchange->scope)) {
        kl__reply_problem(exchange, 403, "forbidden", "the store holds all queues, and the token '%s' is for some only",
                          exchange->who);
        return;
    }
    kl_rc rc = know_queues(exchange);
    if (rc != KL_OK) {
        kl__reply_rc(exchange, rc);
        return;
    }
    kl__exchange_over(exchange, 101);
    kl__http_upgrade(request, protocol, taken, exchange);
}
