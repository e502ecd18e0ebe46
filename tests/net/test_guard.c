/* test_guard.c - which requests may be here at all, row by row. */
#include "harness.h"
#include "net/guard.h"

static const char *const listen_on[] = {"127.0.0.1:7420", "10.0.0.5:7420", "unix:/run/keyline.sock"};
static const char *const names[] = {"tasks.example.org"};
static const kl__guard guard = {listen_on, 3, names, 1};

static kl__head head_of(kl__method method, const char *host)
{
    kl__head head = {.method = method};
    if (host)
        head.fields[head.field_count++] = (kl__field){kl_str("host"), kl_str(host)};
    return head;
}

static void add(kl__head *head, const char *name, const char *value)
{
    if (value)
        head->fields[head->field_count++] = (kl__field){kl_str(name), kl_str(value)};
}

TEST(host_must_be_ours)
{
    static const struct {
        const char *host;
        bool may;
    } rows[] = {
        {NULL, true},
        {"localhost", true},
        {"LocalHost:7420", true},
        {"localhost.", true},
        {"127.0.0.1:7420", true},
        {"127.8.9.1", true},
        {"[::1]:7420", true},
        {"[::ffff:127.0.0.1]", true},
        {"10.0.0.5:7420", true},
        {"10.0.0.5", true},
        {"tasks.example.org", true},
        {"TASKS.example.org:443", true},
        {"10.0.0.6", false},
        {"evil.example", false},
        {"localhost.evil.example", false},
        {"127.0.0.1.evil.example", false},
        {"xtasks.example.org", false},
        {"tasks.example.org.evil", false},
        {"[::2]", false},
        {"[::1", false},
        {"0.0.0.0", false},
        {"0x7f.1", false},
        {"2130706433", false},
        {":7420", false},
        {".", false},
        {"unix", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kl__head head = head_of(KL_METHOD_GET, rows[i].host);
        bool may = kl__guard_check(&guard, &head) == NULL;
        if (may != rows[i].may)
            test_fail(__FILE__, __LINE__, "Host %s: %s", rows[i].host ? rows[i].host : "(none)",
                      may ? "let in" : "refused");
    }
}

TEST(where_all_addresses_are_listened_on_any_address_will_do_and_no_name)
{
    static const char *const all[] = {"0.0.0.0:7420"}, *const all_six[] = {"[::]:7420"};
    const kl__guard guards[] = {{.listen = all, .listen_count = 1}, {.listen = all_six, .listen_count = 1}};
    for (size_t i = 0; i < 2; i++) {
        kl__head address = head_of(KL_METHOD_GET, "192.0.2.7:7420"), name = head_of(KL_METHOD_GET, "evil.example");
        CHECK(kl__guard_check(&guards[i], &address) == NULL);
        CHECK(kl__guard_check(&guards[i], &name) != NULL);
    }
}

TEST(a_host_that_is_too_long_is_refused)
{
    char host[400];
    memset(host, 'a', sizeof host - 1);
    host[sizeof host - 1] = 0;
    kl__head head = head_of(KL_METHOD_GET, host);
    CHECK(kl__guard_check(&guard, &head) != NULL);
}

TEST(pages_of_other_sites_get_nothing)
{
    static const struct {
        kl__method method;
        const char *site, *origin, *mode, *dest;
        bool may;
    } rows[] = {
        {KL_METHOD_GET, NULL, NULL, NULL, NULL, true},
        {KL_METHOD_POST, NULL, NULL, NULL, NULL, true},
        {KL_METHOD_GET, "same-origin", NULL, "cors", "empty", true},
        {KL_METHOD_POST, "same-origin", "http://localhost:7420", "cors", "empty", true},
        {KL_METHOD_GET, "none", NULL, "navigate", "document", true},
        {KL_METHOD_POST, "none", NULL, NULL, NULL, true},
        {KL_METHOD_GET, "same-site", NULL, "cors", "empty", true},
        {KL_METHOD_POST, "same-site", NULL, "cors", "empty", false},
        {KL_METHOD_DELETE, "same-site", NULL, "cors", "empty", false},
        {KL_METHOD_PUT, "Same-Site", NULL, "cors", "empty", false},
        {KL_METHOD_GET, "cross-site", NULL, "cors", "empty", false},
        {KL_METHOD_GET, "cross-site", NULL, "no-cors", "script", false},
        {KL_METHOD_GET, "cross-site", NULL, "navigate", "iframe", false},
        {KL_METHOD_GET, "cross-site", NULL, "navigate", "document", true},
        {KL_METHOD_POST, "cross-site", "http://evil.example", "navigate", "document", false},
        {KL_METHOD_HEAD, "cross-site", NULL, NULL, NULL, false},
        {KL_METHOD_GET, "whatever", NULL, NULL, NULL, false},
        {KL_METHOD_POST, NULL, "http://localhost:7420", NULL, NULL, true},
        {KL_METHOD_POST, NULL, "HTTPS://LOCALHOST:7420", NULL, NULL, true},
        {KL_METHOD_POST, NULL, "http://localhost", NULL, NULL, false},
        {KL_METHOD_POST, NULL, "http://localhost:8080", NULL, NULL, false},
        {KL_METHOD_POST, NULL, "http://evil.example:7420", NULL, NULL, false},
        {KL_METHOD_POST, NULL, "ftp://localhost:7420", NULL, NULL, false},
        {KL_METHOD_POST, NULL, "null", NULL, NULL, false},
        {KL_METHOD_GET, NULL, "http://evil.example", NULL, NULL, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kl__head head = head_of(rows[i].method, "localhost:7420");
        add(&head, "sec-fetch-site", rows[i].site);
        add(&head, "origin", rows[i].origin);
        add(&head, "sec-fetch-mode", rows[i].mode);
        add(&head, "sec-fetch-dest", rows[i].dest);
        if ((kl__guard_check(&guard, &head) == NULL) != rows[i].may)
            test_fail(__FILE__, __LINE__, "row %zu is judged wrongly", i);
    }
}

TEST(a_bearer_is_found)
{
    static const struct {
        const char *field, *token;
    } rows[] = {
        {NULL, ""},     {"Bearer abc", "abc"}, {"bearer abc", "abc"}, {"BEARER   abc", "abc"},
        {"Bearer", ""}, {"Bearer ", ""},       {"Basic abc", ""},     {"Bearerabc", ""},
        {"abc", ""},    {"Bearer a b", "a b"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        kl__head head = head_of(KL_METHOD_GET, "localhost");
        add(&head, "authorization", rows[i].field);
        kl_bytes token = kl__guard_bearer(&head);
        if (token.len != strlen(rows[i].token) || (token.len && memcmp(token.data, rows[i].token, token.len) != 0))
            test_fail(__FILE__, __LINE__, "'%s' gives another token", rows[i].field ? rows[i].field : "");
    }
}

TEST(loopback_addresses_are_told_from_others)
{
    static const char *const loopback[] = {"127.0.0.1:7420", "127.9.9.9:1", "[::1]:7420", "localhost:0", "unix:/x"};
    static const char *const others[] = {"0.0.0.0:7420", "[::]:7420", "10.0.0.1:7420", ":7420", "example.org:7420", ""};
    for (size_t i = 0; i < sizeof loopback / sizeof *loopback; i++)
        CHECK(kl__guard_loopback(loopback[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        CHECK(!kl__guard_loopback(others[i]));
}
