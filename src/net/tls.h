/* tls.h - TLS 1.2 and 1.3 on a socket that does not block: OpenSSL behind a few calls.
 *
 * From: http_connection.c, http_upgrade.c.  To: OpenSSL.
 *
 * Whoever calls these has all signals blocked, as OpenSSL writes to a socket that may be closed: no SIGPIPE comes
 * then. */
#ifndef KL_NET_TLS_H
#define KL_NET_TLS_H

#include "base/base.h"

typedef struct kl__tls_context kl__tls_context;
typedef struct kl__tls kl__tls;

/* What came of reading or writing on a socket that does not block. */
typedef enum kl__io {
    KL_IO_DONE,   /* some bytes went through */
    KL_IO_READ,   /* again when bytes have come */
    KL_IO_WRITE,  /* again when there is room */
    KL_IO_END,    /* reading: the client sends no more */
    KL_IO_BROKEN, /* nothing will go through any more */
} kl__io;

/* Certificate chain and key from PEM files. KL_EINVAL: they cannot be read, or do not belong together. KL_ENOMEM. */
KL_MUST_USE kl_rc kl__tls_context_open(const char *cert, const char *key, kl__tls_context **ret_context);
void kl__tls_context_close(kl__tls_context *context); /* NULL is fine; connections that use it go on */

/* A connection's end of it; the descriptor stays the caller's. NULL: out of memory. */
kl__tls *kl__tls_open(kl__tls_context *context, int fd);
void kl__tls_close(kl__tls *tls); /* NULL is fine */

kl__io kl__tls_accept(kl__tls *tls); /* DONE: the handshake is complete */
kl__io kl__tls_read(kl__tls *tls, void *to, size_t room, size_t *ret_len);
kl__io kl__tls_write(kl__tls *tls, const void *from, size_t len, size_t *ret_len);
void kl__tls_end(kl__tls *tls); /* tells the client that nothing more comes */

#endif
