/* tls.c - TLS 1.2 and 1.3 on a socket that does not block: OpenSSL behind a few calls (tls.h). */
#include "net/tls.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

struct kl__tls_context {
    SSL_CTX *ctx;
};

/* An SSL is what it is; the name keeps OpenSSL's headers out of other files. */
static SSL *ssl_of(kl__tls *tls) { return (SSL *)tls; }

/* ---- Certificate and key ---- */

/* The reason of the oldest error that OpenSSL has in store for this thread, which forgets all of them. */
static const char *ssl_reason(void)
{
    unsigned long error = ERR_get_error();
    const char *reason = error ? ERR_reason_error_string(error) : NULL;
    ERR_clear_error();
    return reason ? reason : "OpenSSL does not say why";
}

/* Only HTTP/1.1 is spoken; a client that offers a list without it gets no answer to that list and goes on or not. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len, const unsigned char *in,
                           unsigned in_len, void *arg)
{
    static const unsigned char protocols[] = "\x08http/1.1";
    (void)ssl;
    (void)arg;
    int found = SSL_select_next_proto((unsigned char **)out, out_len, protocols, sizeof protocols - 1, in, in_len);
    return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

static kl_rc load(SSL_CTX *ctx, const char *cert, const char *key)
{
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        return kl__fail(KL_EINVAL, "the certificate %s cannot be used (%s); name a PEM file with the whole chain", cert,
                        ssl_reason());
    if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        return kl__fail(KL_EINVAL,
                        "the key %s cannot be used (%s); name the PEM file of the key of %s, without a password", key,
                        ssl_reason(), cert);
    return KL_OK;
}

static void set_up(SSL_CTX *ctx)
{
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(ctx,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
}

/* A key with a password would have OpenSSL ask for it on the terminal. */
static int no_password(char *buffer, int size, int writing, void *arg)
{
    (void)buffer;
    (void)size;
    (void)writing;
    (void)arg;
    return -1;
}

kl_rc kl__tls_context_open(const char *cert, const char *key, kl__tls_context **ret_context)
{
    kl__tls_context *context = kl__alloc_zeroed(1, sizeof *context);
    if (!context)
        return kl__fail_memory();
    context->ctx = SSL_CTX_new(TLS_server_method());
    kl_rc rc = context->ctx ? KL_OK : kl__fail_memory();
    if (rc == KL_OK) {
        SSL_CTX_set_default_passwd_cb(context->ctx, no_password);
        set_up(context->ctx);
        rc = load(context->ctx, cert, key);
    }
    if (rc == KL_OK)
        *ret_context = context;
    else
        kl__tls_context_close(context);
    return rc;
}

void kl__tls_context_close(kl__tls_context *context)
{
    if (!context)
        return;
    SSL_CTX_free(context->ctx);
    kl__free(context);
}

/* ---- A connection ---- */

kl__tls *kl__tls_open(kl__tls_context *context, int fd)
{
    SSL *ssl = SSL_new(context->ctx);
    if (ssl && SSL_set_fd(ssl, fd) != 1) {
        SSL_free(ssl);
        ssl = NULL;
    }
    ERR_clear_error();
    return (kl__tls *)ssl;
}

void kl__tls_close(kl__tls *tls) { SSL_free(ssl_of(tls)); }

static kl__io judge(SSL *ssl, int result)
{
    switch (SSL_get_error(ssl, result)) {
    case SSL_ERROR_NONE:
        return KL_IO_DONE;
    case SSL_ERROR_WANT_READ:
        return KL_IO_READ;
    case SSL_ERROR_WANT_WRITE:
        return KL_IO_WRITE;
    case SSL_ERROR_ZERO_RETURN:
        return KL_IO_END;
    default:
        return KL_IO_BROKEN;
    }
}

/* OpenSSL's errors are a queue of the thread: what another connection, or who serves, has left there is forgotten
 * first. */
kl__io kl__tls_accept(kl__tls *tls)
{
    ERR_clear_error();
    return judge(ssl_of(tls), SSL_accept(ssl_of(tls)));
}

kl__io kl__tls_read(kl__tls *tls, void *to, size_t room, size_t *ret_len)
{
    ERR_clear_error();
    return judge(ssl_of(tls), SSL_read_ex(ssl_of(tls), to, room, ret_len));
}

kl__io kl__tls_write(kl__tls *tls, const void *from, size_t len, size_t *ret_len)
{
    ERR_clear_error();
    return judge(ssl_of(tls), SSL_write_ex(ssl_of(tls), from, len, ret_len));
}

void kl__tls_end(kl__tls *tls)
{
    if (SSL_is_init_finished(ssl_of(tls)))
        SSL_shutdown(ssl_of(tls));
    ERR_clear_error();
}
