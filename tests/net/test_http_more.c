/* test_http_more.c - TLS, answers without an end, and connections that are handed over. */
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"
#include "http_rig.h"

#define HOST "Host: x\r\n"
#define GET  "GET /about HTTP/1.1\r\n" HOST "\r\n"

/* ---- Certificates, made as they are needed ---- */

struct pair {
    char cert[64], key[64];
};

static bool write_pair(struct pair *pair, EVP_PKEY *key, X509 *cert)
{
    FILE *cert_file = fopen(pair->cert, "w"), *key_file = fopen(pair->key, "w");
    bool written = cert_file && key_file && PEM_write_X509(cert_file, cert) == 1 &&
                   PEM_write_PrivateKey(key_file, key, NULL, NULL, 0, NULL, NULL) == 1;
    if (cert_file)
        fclose(cert_file);
    if (key_file)
        fclose(key_file);
    return written;
}

static EVP_PKEY *make_key(void)
{
    EVP_PKEY *key = NULL;
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_id(EVP_PKEY_EC, NULL);
    bool made = ctx && EVP_PKEY_keygen_init(ctx) == 1 &&
                EVP_PKEY_CTX_set_ec_paramgen_curve_nid(ctx, NID_X9_62_prime256v1) == 1 &&
                EVP_PKEY_keygen(ctx, &key) == 1;
    EVP_PKEY_CTX_free(ctx);
    return made ? key : NULL;
}

/* For `name`, signed by itself, into the pair's files. */
static bool make_pair(struct pair *pair, const char *name)
{
    snprintf(pair->cert, sizeof pair->cert, "/tmp/keyline-http-%d.crt", (int)getpid());
    snprintf(pair->key, sizeof pair->key, "/tmp/keyline-http-%d.key", (int)getpid());
    EVP_PKEY *key = make_key();
    X509 *cert = X509_new();
    bool made = key && cert && X509_set_version(cert, 2) == 1 &&
                ASN1_INTEGER_set(X509_get_serialNumber(cert), 1) == 1 &&
                X509_gmtime_adj(X509_getm_notBefore(cert), -60) && X509_gmtime_adj(X509_getm_notAfter(cert), 3600) &&
                X509_set_pubkey(cert, key) == 1 &&
                X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC, (const unsigned char *)name,
                                           -1, -1, 0) == 1 &&
                X509_set_issuer_name(cert, X509_get_subject_name(cert)) == 1 &&
                X509_sign(cert, key, EVP_sha256()) > 0 && write_pair(pair, key, cert);
    X509_free(cert);
    EVP_PKEY_free(key);
    if (!made)
        test_fail(__FILE__, __LINE__, "no certificate could be made");
    return made;
}

static void remove_pair(const struct pair *pair)
{
    unlink(pair->cert);
    unlink(pair->key);
}

/* ---- A client with TLS ---- */

struct secure {
    struct client client;
    SSL_CTX *ctx;
    SSL *ssl;
};

static bool secure_open(struct rig *rig, struct secure *secure, int version)
{
    secure->ctx = SSL_CTX_new(TLS_client_method());
    secure->ssl = NULL;
    SSL_CTX_set_max_proto_version(secure->ctx, version);
    SSL_CTX_set_min_proto_version(secure->ctx, TLS1_VERSION);
    SSL_CTX_set_security_level(secure->ctx, 0);
    if (!client_open(rig, &secure->client))
        return false;
    secure->ssl = SSL_new(secure->ctx);
    SSL_set_fd(secure->ssl, secure->client.fd);
    return SSL_connect(secure->ssl) == 1;
}

static void secure_close(struct secure *secure)
{
    SSL_free(secure->ssl);
    SSL_CTX_free(secure->ctx);
    client_close(&secure->client);
    ERR_clear_error();
}

/* Everything up to this text and with it. False: it ends before. */
static bool secure_hear(struct secure *secure, const char *until, char *text, size_t room)
{
    size_t len = 0;
    do {
        int some = SSL_read(secure->ssl, text + len, (int)(room - len - 1));
        if (some <= 0)
            return false;
        len += (size_t)some;
        text[len] = '\0';
    } while (!strstr(text, until));
    return true;
}

static bool secure_say(struct secure *secure, const char *text)
{
    return SSL_write(secure->ssl, text, (int)strlen(text)) == (int)strlen(text);
}

static void check_secure(struct rig *rig, int version, const char *name)
{
    static struct secure secure;
    char text[4096], subject[64] = "";
    if (!secure_open(rig, &secure, version)) {
        test_fail(__FILE__, __LINE__, "no handshake");
    } else {
        X509 *cert = SSL_get_peer_certificate(secure.ssl);
        X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, subject, sizeof subject);
        X509_free(cert);
        CHECK_STR(subject, name);
        for (int i = 0; i < 3; i++) {
            CHECK(secure_say(&secure, GET));
            CHECK(secure_hear(&secure, "0 /about 1 0 1", text, sizeof text));
        }
    }
    secure_close(&secure);
}

TEST(tls_1_2_and_1_3_are_spoken_and_older_ones_are_not)
{
    struct pair pair;
    REQUIRE(make_pair(&pair, "one"));
    struct rig rig = {.opts.tls_cert = pair.cert, .opts.tls_key = pair.key};
    static struct secure secure;
    if (rig_open(&rig)) {
        check_secure(&rig, TLS1_2_VERSION, "one");
        check_secure(&rig, TLS1_3_VERSION, "one");
        CHECK(!secure_open(&rig, &secure, TLS1_1_VERSION));
        secure_close(&secure);
        rig_close(&rig);
    }
    remove_pair(&pair);
}

TEST(a_client_without_tls_gets_nothing)
{
    struct pair pair;
    REQUIRE(make_pair(&pair, "one"));
    struct rig rig = {.opts.tls_cert = pair.cert, .opts.tls_key = pair.key};
    static struct client client;
    if (rig_open(&rig)) {
        REQUIRE(client_open(&rig, &client));
        CHECK(client_say_text(&client, GET));
        client_hear_all(&client);
        CHECK(!memmem(client.bytes, client.len, "HTTP/1.1 200", 12));
        client_close(&client);
        CHECK_INT(kl__http_counted(rig.http).requests, 0);
        rig_close(&rig);
    }
    remove_pair(&pair);
}

TEST(a_handshake_that_does_not_come_in_time_ends_the_connection)
{
    struct pair pair;
    REQUIRE(make_pair(&pair, "one"));
    struct rig rig = {.opts.tls_cert = pair.cert, .opts.tls_key = pair.key, .opts.head_ms = 30};
    static struct client client;
    if (rig_open(&rig)) {
        REQUIRE(client_open(&rig, &client));
        CHECK(client_say(&client, "\x16\x03\x01", 3)); /* the beginning of one */
        CHECK(client_hear_end(&client));
        client_close(&client);
        rig_close(&rig);
    }
    remove_pair(&pair);
}

/* Large both ways, so that neither fits what the socket takes at once. */
TEST(large_bodies_go_through_tls)
{
    struct pair pair;
    REQUIRE(make_pair(&pair, "one"));
    struct rig rig = {.opts.tls_cert = pair.cert, .opts.tls_key = pair.key};
    static struct secure secure;
    enum { LEN = 1 << 20 };
    char *bytes = calloc(1, LEN), *back = calloc(1, LEN + 1000);
    REQUIRE(bytes && back && rig_open(&rig));
    for (size_t i = 0; i < LEN; i++)
        bytes[i] = (char)('a' + i % 19);
    if (secure_open(&rig, &secure, TLS1_3_VERSION)) {
        CHECK(secure_say(&secure, "POST /later HTTP/1.1\r\n" HOST "Content-Length: 1048576\r\n\r\n"));
        CHECK_INT(SSL_write(secure.ssl, bytes, LEN), LEN);
        size_t len = 0;
        char *body = NULL;
        while (!body || (size_t)(back + len - body) < LEN + 4) {
            int some = SSL_read(secure.ssl, back + len, (int)(LEN + 1000 - len));
            REQUIRE(some > 0);
            len += (size_t)some;
            body = memmem(back, len, "\r\n\r\n", 4);
        }
        CHECK_INT(memcmp(body + 4, bytes, LEN), 0);
    }
    secure_close(&secure);
    free(bytes);
    free(back);
    rig_close(&rig);
    remove_pair(&pair);
}

TEST(a_new_certificate_is_used_from_then_on_and_a_bad_one_is_refused)
{
    struct pair pair;
    REQUIRE(make_pair(&pair, "one"));
    struct rig rig = {.opts.tls_cert = pair.cert, .opts.tls_key = pair.key};
    static struct secure before;
    char text[4096];
    REQUIRE(rig_open(&rig));
    REQUIRE(secure_open(&rig, &before, TLS1_3_VERSION));
    CHECK(make_pair(&pair, "two"));
    check_secure(&rig, TLS1_3_VERSION, "one");
    CHECK_INT(kl__http_reload_tls(rig.http), KL_OK);
    check_secure(&rig, TLS1_3_VERSION, "two");
    CHECK(truncate(pair.key, 20) == 0);
    CHECK_INT(kl__http_reload_tls(rig.http), KL_EINVAL);
    CHECK_CONTAINS(kl_error_text(), pair.key);
    check_secure(&rig, TLS1_3_VERSION, "two");
    CHECK(secure_say(&before, GET)); /* what was open goes on */
    CHECK(secure_hear(&before, "0 /about 1 0 1", text, sizeof text));
    secure_close(&before);
    rig_close(&rig);
    remove_pair(&pair);
}

TEST(certificates_and_keys_that_cannot_be_used_are_refused_with_a_sentence)
{
    struct pair pair;
    REQUIRE(make_pair(&pair, "one"));
    const char *address = "127.0.0.1:0";
    const struct {
        const char *cert, *key, *part;
    } rows[] = {
        {pair.cert, NULL, "both"},
        {NULL, pair.key, "both"},
        {"/nowhere.crt", pair.key, "/nowhere.crt"},
        {pair.cert, "/nowhere.key", "/nowhere.key"},
        {pair.key, pair.key, "certificate"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rig rig = {0};
        kl__http_opts opts = {.listen = &address,
                              .listen_count = 1,
                              .tls_cert = rows[i].cert,
                              .tls_key = rows[i].key,
                              .serve = (kl__serve_fn *)abort};
        CHECK_INT(kl__http_open(&opts, &rig.http), KL_EINVAL);
        CHECK_CONTAINS(kl_error_text(), rows[i].part);
    }
    remove_pair(&pair);
}

/* ---- Streams ---- */

static kl__request *open_stream(struct rig *rig, struct client *client)
{
    if (!client_open(rig, client))
        return NULL;
    CHECK(client_say_text(client, "GET /stream HTTP/1.1\r\n" HOST "\r\n"));
    if (!rig_await_held(rig, 1))
        return NULL;
    kl__request *request = rig_take(rig);
    CHECK(kl__http_stream(request, "text/event-stream"));
    return request;
}

TEST(a_stream_sends_its_head_at_once_and_pieces_as_they_come)
{
    struct rig rig = {0};
    static struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    kl__request *request = open_stream(&rig, &client);
    REQUIRE(request);
    REQUIRE(client_hear(&client, true, &reply));
    CHECK_CONTAINS(reply.head, "Content-Type: text/event-stream\r\n");
    CHECK_CONTAINS(reply.head, "Connection: close\r\n");
    CHECK(!strstr(reply.head, "Content-Length"));
    reply_free(&reply);
    for (int i = 0; i < 1000; i++) {
        char piece[32];
        snprintf(piece, sizeof piece, "data: %d\n\n", i);
        CHECK(kl__http_send(request, kl_str(piece), 1 << 20));
        if (i % 100 == 0)
            CHECK(client_hear_bytes(&client, piece));
        else if (i % 100 == 99)
            for (int j = i - 98; j <= i; j++) {
                snprintf(piece, sizeof piece, "data: %d\n\n", j);
                CHECK(client_hear_bytes(&client, piece));
            }
    }
    CHECK(kl__http_send(request, kl_str("last"), 1 << 20));
    kl__http_end(request);
    CHECK(client_hear_bytes(&client, "last"));
    CHECK(client_hear_end(&client));
    client_close(&client);
    CHECK(rig_await_connections(&rig, 0));
    rig_close(&rig);
}

TEST(a_stream_that_is_not_taken_says_so_and_loses_nothing_before)
{
    enum { PIECE = 10000, UNSENT_MAX = 100000 };
    struct rig rig = {0};
    static struct client client;
    static char piece[PIECE];
    REQUIRE(rig_open(&rig));
    kl__request *request = open_stream(&rig, &client);
    REQUIRE(request);
    size_t accepted = 0;
    memset(piece, 'x', sizeof piece);
    while (kl__http_send(request, (kl_bytes){piece, PIECE}, UNSENT_MAX))
        accepted += PIECE;
    kl__http_end(request);
    size_t heard = client_hear_all(&client);
    char *body = memmem(client.bytes, client.len, "\r\n\r\n", 4);
    REQUIRE(body);
    CHECK_INT(heard - (size_t)(body + 4 - client.bytes), accepted);
    client_close(&client);
    rig_close(&rig);
}

static bool has_gone(struct rig *rig, size_t count)
{
    pthread_mutex_lock(&rig->mutex);
    bool gone = rig->gone >= count;
    pthread_mutex_unlock(&rig->mutex);
    return gone;
}

TEST(who_sends_a_stream_learns_that_its_client_is_gone)
{
    struct rig rig = {.opts.send_ms = 50};
    static struct client client;
    static char piece[100000];
    REQUIRE(rig_open(&rig));
    for (int i = 0; i < 2; i++) {
        kl__request *request = open_stream(&rig, &client);
        REQUIRE(request);
        if (i == 0) {
            client_close(&client);
            CHECK(rig_await_gone(&rig, 1));
            while (kl__http_send(request, kl_str("x"), SIZE_MAX))
                continue;
        } else { /* it is there, and takes nothing */
            while (!has_gone(&rig, 2))
                kl__http_send(request, (kl_bytes){piece, sizeof piece}, 2000000);
            CHECK(!kl__http_send(request, kl_str("x"), SIZE_MAX));
        }
        kl__http_on_gone(request, NULL, NULL);
        kl__http_end(request);
        client_close(&client);
        CHECK(rig_await_connections(&rig, 0));
    }
    rig_close(&rig);
}

/* ---- Upgrades ---- */

#define UPGRADE "GET /upgrade HTTP/1.1\r\n" HOST "Connection: Upgrade\r\nUpgrade: echo\r\n\r\n"

TEST(a_connection_is_handed_over_with_what_came_ahead)
{
    static const char *const texts[] = {UPGRADE, UPGRADE "early bytes"};
    struct rig rig = {0};
    static struct client client;
    struct reply reply;
    REQUIRE(rig_open(&rig));
    for (int i = 0; i < 2; i++) {
        REQUIRE(client_open(&rig, &client));
        CHECK(client_say_text(&client, texts[i]));
        REQUIRE(client_hear(&client, true, &reply));
        CHECK_INT(strncmp(reply.head, "HTTP/1.1 101 Switching Protocols\r\n", 34), 0);
        CHECK_CONTAINS(reply.head, "Upgrade: echo\r\nConnection: Upgrade\r\n\r\n");
        reply_free(&reply);
        CHECK(i == 0 || client_hear_bytes(&client, "early bytes"));
        for (int j = 0; j < 100; j++)
            CHECK(client_say_text(&client, "over and over") && client_hear_bytes(&client, "over and over"));
        CHECK(client_say_text(&client, "the end"));
        shutdown(client.fd, SHUT_WR);
        CHECK(client_hear_bytes(&client, "the end"));
        CHECK(client_hear_end(&client));
        client_close(&client);
    }
    CHECK_INT(rig.upgrades_broken, 0);
    CHECK_INT(kl__http_counted(rig.http).connections, 0);
    rig_close(&rig);
}

TEST(a_connection_with_tls_is_handed_over_as_plain_bytes)
{
    struct pair pair;
    REQUIRE(make_pair(&pair, "one"));
    struct rig rig = {.opts.tls_cert = pair.cert, .opts.tls_key = pair.key};
    static struct secure secure;
    char text[4096];
    enum { LEN = 300000 };
    char *bytes = calloc(1, LEN), *back = calloc(1, LEN);
    REQUIRE(bytes && back && rig_open(&rig));
    for (size_t i = 0; i < LEN; i++)
        bytes[i] = (char)(i * 31 + i / 256);
    REQUIRE(secure_open(&rig, &secure, TLS1_3_VERSION));
    CHECK(secure_say(&secure, UPGRADE));
    CHECK(secure_hear(&secure, "\r\n\r\n", text, sizeof text));
    CHECK_CONTAINS(text, "HTTP/1.1 101 ");
    for (size_t sent = 0, heard = 0; heard < LEN;) {
        size_t some = LEN - sent < 10000 ? LEN - sent : 10000, len = 0;
        if (some > 0)
            CHECK_INT(SSL_write(secure.ssl, bytes + sent, (int)some), some);
        sent += some;
        REQUIRE(SSL_read_ex(secure.ssl, back + heard, LEN - heard, &len) == 1);
        heard += len;
    }
    CHECK_INT(memcmp(bytes, back, LEN), 0);
    SSL_shutdown(secure.ssl);
    CHECK(SSL_read(secure.ssl, text, sizeof text) <= 0);
    secure_close(&secure);
    free(bytes);
    free(back);
    rig_close(&rig);
    remove_pair(&pair);
}

/* The other side of it still has its end when http is closed. */
TEST(close_ends_what_is_carried)
{
    struct pair pair;
    REQUIRE(make_pair(&pair, "one"));
    struct rig rig = {.opts.tls_cert = pair.cert, .opts.tls_key = pair.key};
    static struct secure secure;
    char text[4096];
    REQUIRE(rig_open(&rig));
    REQUIRE(secure_open(&rig, &secure, TLS1_2_VERSION));
    CHECK(secure_say(&secure, UPGRADE));
    CHECK(secure_hear(&secure, "\r\n\r\n", text, sizeof text));
    CHECK(secure_say(&secure, "x"));
    CHECK(secure_hear(&secure, "x", text, sizeof text));
    rig_close(&rig); /* joins the thread that the descriptor was handed to */
    CHECK(SSL_read(secure.ssl, text, sizeof text) <= 0);
    secure_close(&secure);
    remove_pair(&pair);
}
