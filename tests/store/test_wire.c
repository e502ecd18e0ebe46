/* test_wire.c - the bytes that go over the socket: what is written is read back, and what is broken breaks nobody.
 *
 * A server is fed through a socket pair's worth of nothing: kl__serve takes a frame from memory, so millions of broken
 * ones cost little. A client is fed by a holder that is none: it greets and then answers with broken frames. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/compare.h"
#include "base/random.h"
#include "disk_rig.h"
#include "store/socket/serve.h"
#include "store/socket/socket.h"

/* ---- Round trips ---- */

static kl__in reread(const kl__out *out)
{
    return (kl__in){.at = out->bytes + KL_FRAME_HEAD, .end = out->bytes + out->length};
}

static kl_entry sample_entry(void)
{
    return (kl_entry){.place = {7, 0xabcd},
                      .id = {{1, 2, 3}},
                      .job = {{9, 8, 7}},
                      .due_ms = KL_ID_MS_MAX,
                      .priority = KL_PRIORITY_MIN,
                      .group = 65535,
                      .key = kl_str("key"),
                      .kind = kl_str(""),
                      .headers = kl_str("headers"),
                      .payload = kl_str("payload")};
}

static void check_entry(const kl_entry *a, const kl_entry *b)
{
    CHECK(a->place.partition == b->place.partition && a->place.shard == b->place.shard);
    CHECK(memcmp(&a->id, &b->id, sizeof a->id) == 0 && memcmp(&a->job, &b->job, sizeof a->job) == 0);
    CHECK(a->due_ms == b->due_ms && a->priority == b->priority && a->group == b->group);
    CHECK(kl__bytes_equal(a->key, b->key) && kl__bytes_equal(a->kind, b->kind));
    CHECK(kl__bytes_equal(a->headers, b->headers) && kl__bytes_equal(a->payload, b->payload));
}

TEST(a_task_is_read_as_it_was_written)
{
    kl_task task = {.entry = sample_entry(),
                    .state = KL_TASK_CANCELLED,
                    .attempts = 65535,
                    .position = UINT64_MAX,
                    .not_before_ms = 5,
                    .finished_ms = -6,
                    .error = kl_str("error"),
                    .result = kl_str("result")};
    kl__out out = {0};
    kl__out_request(&out, KL_WIRE_READ, 1);
    kl__out_task(&out, &task);
    kl__in in = reread(&out);
    kl_task back = kl__in_task(&in);
    CHECK(kl__in_done(&in));
    check_entry(&back.entry, &task.entry);
    CHECK(back.state == task.state && back.attempts == task.attempts && back.position == task.position);
    CHECK(back.not_before_ms == task.not_before_ms && back.finished_ms == task.finished_ms);
    CHECK(kl__bytes_equal(back.error, task.error) && kl__bytes_equal(back.result, task.result));
    kl__out_free(&out);
}

TEST(a_stub_is_read_as_it_was_written)
{
    kl_stub stub = {.id = {{5}}, .position = 6, .key_hash = 7, .due_ms = 8, .bytes = 9};
    stub.attempts = 65535, stub.group = 65534, stub.priority = -16;
    kl__out out = {0};
    kl__out_request(&out, KL_WIRE_SCAN, 1);
    kl__out_stub(&out, &stub);
    CHECK_INT(out.length, KL_FRAME_HEAD + KL_WIRE_STUB);
    kl__in in = reread(&out);
    kl_stub back = kl__in_stub(&in);
    CHECK(kl__in_done(&in));
    CHECK(memcmp(&back.id, &stub.id, sizeof stub.id) == 0 && back.position == 6 && back.key_hash == 7);
    CHECK(back.due_ms == 8 && back.bytes == 9 && back.attempts == 65535 && back.group == 65534);
    CHECK_INT(back.priority, -16);
    kl__out_free(&out);
}

TEST(a_settled_task_is_read_as_it_was_written)
{
    kl_settled settled = {
        .id = {{5}}, .position = 6, .outcome = KL_CANCELLED, .attempts = 7, .due_ms = 8, .keep_ms = 9};
    settled.error = kl_str("what went wrong");
    kl__out out = {0};
    kl__out_request(&out, KL_WIRE_SETTLE, 1);
    kl__out_settled(&out, &settled);
    kl__in in = reread(&out);
    kl_settled back = kl__in_settled(&in);
    CHECK(kl__in_done(&in));
    CHECK(memcmp(&back.id, &settled.id, sizeof settled.id) == 0 && back.position == 6);
    CHECK(back.outcome == KL_CANCELLED && back.attempts == 7 && back.due_ms == 8 && back.keep_ms == 9);
    CHECK(kl__bytes_equal(back.error, settled.error) && back.result.len == 0);
    kl__out_free(&out);
}

TEST(sizes_are_those_of_the_table)
{
    kl__out out = {0};
    kl__out_request(&out, KL_WIRE_READ, 1);
    CHECK_INT(out.length, KL_FRAME_HEAD);
    kl__out_entry(&out, &(kl_entry){.due_ms = 0});
    CHECK_INT(out.length, KL_FRAME_HEAD + KL_WIRE_ENTRY);
    kl__out_request(&out, KL_WIRE_READ, 1);
    kl__out_task(&out, &(kl_task){.position = 0});
    CHECK_INT(out.length, KL_FRAME_HEAD + KL_WIRE_TASK);
    kl__out_request(&out, KL_WIRE_READ, 1);
    kl__out_ref(&out, &(kl_ref){.position = 0});
    CHECK_INT(out.length, KL_FRAME_HEAD + KL_WIRE_REF);
    kl__out_request(&out, KL_WIRE_READ, 1);
    kl__out_settled(&out, &(kl_settled){.position = 0});
    CHECK_INT(out.length, KL_FRAME_HEAD + KL_WIRE_SETTLED);
    kl__out_request(&out, KL_WIRE_READ, 1);
    kl__out_record(&out, &(kl_record){.version = 0}, true);
    CHECK_INT(out.length, KL_FRAME_HEAD + KL_WIRE_RECORD);
    kl__out_free(&out);
}

TEST(a_count_beyond_the_bytes_is_refused)
{
    static const uint8_t bytes[4 + 32] = {2};
    kl__in in = {.at = bytes, .end = bytes + sizeof bytes};
    CHECK_INT(kl__in_count(&in, 10, 16), 2);
    in = (kl__in){.at = bytes, .end = bytes + sizeof bytes};
    CHECK_INT(kl__in_count(&in, 10, 17), 0);
    CHECK(in.bad);
    in = (kl__in){.at = bytes, .end = bytes + sizeof bytes};
    CHECK_INT(kl__in_count(&in, 1, 16), 0);
    CHECK(in.bad);
}

/* ---- A server and broken requests ---- */

struct bench {
    kl_store *store;
    uint32_t partition;
    atomic_bool stopping;
    int ends[2];
    kl__serving serving;
};

static bool bench_begin(struct bench *bench)
{
    memset(bench, 0, sizeof *bench);
    CHECK_OK(kl_store_open("memory:", NULL, &bench->store));
    if (!bench->store || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bench->ends) != 0)
        return false;
    CHECK_OK(kl_store_partition(bench->store, "p", 1, &bench->partition));
    bench->serving =
        (kl__serving){.store = bench->store, .salt = 99, .stopping = &bench->stopping, .fd = bench->ends[0]};
    return true;
}

static void bench_end(struct bench *bench)
{
    kl__out_free(&bench->serving.out);
    kl_arena_free(&bench->serving.arena);
    close(bench->ends[0]);
    close(bench->ends[1]);
    kl_store_close(bench->store);
}

/* Has the bytes served as a frame. The answer must be one, whatever came in. */
static kl__answer serve(struct bench *bench, const kl__out *request)
{
    kl__frame frame = {.bytes = request->bytes, .length = request->length};
    kl__answer answer = {.rc = KL_OK};
    kl__serve(&bench->serving, &frame);
    kl__out *out = &bench->serving.out;
    CHECK(!out->failed && out->length >= KL_FRAME_HEAD + KL_ANSWER_HEAD);
    CHECK(kl__frame_answer(&(kl__frame){.bytes = out->bytes, .length = out->length}, &answer));
    return answer;
}

static void write_other(struct bench *bench, kl__wire_call call, kl__out *out)
{
    kl_place place = {bench->partition, 1};
    kl_task_id id = {{0x10, 1}};
    if (call == KL_WIRE_FENCE) {
        kl__out_u32(out, 1);
        kl__out_place(out, (kl_place){bench->partition, 2});
        kl__out_u64(out, 3);
        kl__out_u8(out, 0);
    } else if (call == KL_WIRE_COUNTS) {
        kl__out_place(out, place);
        kl__out_u8(out, 0);
        kl__out_id(out, NULL);
    } else if (call == KL_WIRE_WAIT) {
        kl__out_u32(out, bench->partition);
        kl__out_u64(out, 0);
        kl__out_u64(out, 0);
    } else if (call == KL_WIRE_RESULTS) {
        kl__out_place(out, place);
        kl__out_id(out, &id);
        kl__out_u8(out, 0);
        kl__out_id(out, NULL);
        kl__out_u32(out, 10);
    } else if (call == KL_WIRE_FIND) {
        kl__out_u32(out, bench->partition);
        kl__out_u32(out, KL_TASK_DEAD);
        kl__out_id(out, NULL);
        kl__out_u64(out, 0);
        kl__out_u64(out, 0);
        kl__out_u32(out, 10);
        kl__out_u8(out, 0);
        kl__out_place(out, place);
        kl__out_id(out, NULL);
        kl__out_u64(out, 0);
        kl__out_u64(out, 0);
        for (int i = 0; i < 3; i++)
            kl__out_bytes(out, kl_str(""));
    } else if (call == KL_WIRE_FORGET) {
        kl__out_place(out, place);
        kl__out_u32(out, 1);
        kl__out_id(out, &id);
    } else if (call == KL_WIRE_GET) {
        kl__out_u32(out, 2);
        kl__out_bytes(out, kl_str("one"));
        kl__out_bytes(out, kl_str("two"));
    } else if (call == KL_WIRE_PUT) {
        kl__out_u32(out, 1);
        kl__out_u64(out, 0);
        kl__out_u64(out, 0);
        kl__out_u8(out, 0);
        kl__out_bytes(out, kl_str("one"));
        kl__out_bytes(out, kl_str("value"));
    } else if (call == KL_WIRE_LIST) {
        kl__out_bytes(out, kl_str("o"));
        kl__out_bytes(out, kl_str(""));
        kl__out_u32(out, 10);
    }
}

/* A valid request of each call, with two items where it takes several. */
static void write_request(struct bench *bench, kl__wire_call call, kl__out *out)
{
    kl_place place = {bench->partition, 1};
    kl_entry entry = {.place = place, .id = {{0x10, 1}}, .key = kl_str("k"), .payload = kl_str("payload")};
    kl__out_request(out, call, 5);
    if (call == KL_WIRE_HELLO) {
        kl__out_u32(out, KL_WIRE_MAGIC);
    } else if (call == KL_WIRE_PARTITION) {
        kl__out_bytes(out, kl_str("p"));
        kl__out_u32(out, 1);
    } else if (call == KL_WIRE_APPEND) {
        kl__out_u8(out, 1);
        kl__out_id(out, &entry.id);
        kl__out_u32(out, 2);
        kl__out_entry(out, &entry);
        entry.id.bytes[1] = 2;
        kl__out_entry(out, &entry);
    } else if (call == KL_WIRE_SCAN) {
        kl__out_u32(out, 1);
        kl__out_place(out, place);
        kl__out_u32(out, 0);
        kl__out_u64(out, 0);
        kl__out_u32(out, 10);
        kl__out_u8(out, 0);
        kl__out_stub(out, &(kl_stub){.position = 0});
    } else if (call == KL_WIRE_READ) {
        kl__out_u32(out, 1);
        kl__out_ref(out, &(kl_ref){.place = place, .id = entry.id});
    } else if (call == KL_WIRE_SETTLE) {
        kl__out_u32(out, 1);
        kl__out_u32(out, 1);
        kl__out_place(out, place);
        kl__out_u64(out, 0);
        kl__out_u32(out, 1);
        kl_settled settled = {.id = entry.id, .position = 1, .outcome = KL_DEAD, .attempts = 1, .keep_ms = 1000000};
        settled.error = kl_str("error"), settled.result = kl_str("result");
        kl__out_settled(out, &settled);
    } else {
        write_other(bench, call, out);
    }
}

TEST(every_call_is_served)
{
    struct bench bench;
    kl__out out = {0};
    REQUIRE(bench_begin(&bench));
    for (int call = 0; call < KL_WIRE_CALLS; call++) {
        write_request(&bench, (kl__wire_call)call, &out);
        kl__answer answer = serve(&bench, &out);
        if (answer.rc != KL_OK || answer.state != KL_ANSWERED)
            test_fail(__FILE__, __LINE__, "call %d is %d: %.*s", call, answer.rc, (int)answer.sentence.len,
                      (const char *)answer.sentence.data);
    }
    kl__out_free(&out);
    bench_end(&bench);
}

TEST(a_frame_that_is_cut_short_or_too_long_is_refused)
{
    struct bench bench;
    kl__out out = {0};
    REQUIRE(bench_begin(&bench));
    for (int call = 0; call < KL_WIRE_CALLS; call++) {
        write_request(&bench, (kl__wire_call)call, &out);
        for (size_t whole = out.length, length = KL_FRAME_HEAD; length <= whole + 1; length++) {
            if (length == whole)
                continue;
            if (length > whole)
                kl__out_u8(&out, 0);
            kl__out part = {.bytes = out.bytes, .length = length};
            CHECK_INT(serve(&bench, &part).rc, KL_EINVAL);
        }
    }
    kl_counts counts = {0};
    CHECK_OK(kl_store_counts(bench.store, (kl_place){bench.partition, KL_ALL_SHARDS}, NULL, &counts));
    CHECK_INT(counts.ready, 0); /* nothing of them has had an effect */
    kl__out_free(&out);
    bench_end(&bench);
}

TEST(another_version_is_refused_with_both_numbers)
{
    struct bench bench;
    kl__out out = {0};
    REQUIRE(bench_begin(&bench));
    write_request(&bench, KL_WIRE_HELLO, &out);
    out.bytes[4] = KL_WIRE_VERSION + 1;
    kl__answer answer = serve(&bench, &out);
    CHECK_INT(answer.rc, KL_EINVAL);
    char sentence[512];
    snprintf(sentence, sizeof sentence, "%.*s", (int)answer.sentence.len, (const char *)answer.sentence.data);
    CHECK_CONTAINS(sentence, "version 3");
    CHECK_CONTAINS(sentence, "version 4");
    kl__out_free(&out);
    bench_end(&bench);
}

/* Changes a few bytes; small numbers and the largest more often than others. */
static void spoil(uint64_t *random, uint8_t *bytes, size_t length)
{
    static const uint8_t likely[] = {0, 1, 2, 0x7f, 0x80, 0xff};
    for (uint64_t i = 0, changes = 1 + kl__random_below(random, 4); i < changes && length; i++) {
        uint64_t what = kl__random_below(random, 8);
        bytes[kl__random_below(random, length)] = what < 6 ? likely[what] : (uint8_t)kl__random_next(random);
    }
}

/* A wait may be told to take for ever; the server's end of the connection says that the client has gone. */
TEST(broken_requests_break_no_server)
{
    struct bench bench;
    kl__out out = {0};
    uint64_t random = test_seed();
    REQUIRE(bench_begin(&bench));
    shutdown(bench.ends[1], SHUT_RDWR);
    for (uint64_t i = 0, count = test_ops(30000); i < count; i++) {
        kl__wire_call call = (kl__wire_call)kl__random_below(&random, KL_WIRE_CALLS);
        if (call == KL_WIRE_WAIT && i % 100)
            continue; /* each may take a tenth of a second */
        write_request(&bench, call, &out);
        spoil(&random, out.bytes + 5, 1);
        out.bytes[5] = kl__random_below(&random, 50) ? (uint8_t)call : out.bytes[5];
        if (out.bytes[5] == KL_WIRE_WAIT && call != KL_WIRE_WAIT)
            continue;
        spoil(&random, out.bytes + KL_FRAME_HEAD, out.length - KL_FRAME_HEAD);
        serve(&bench, &out);
    }
    kl__out_free(&out);
    bench_end(&bench);
}

/* ---- A client and a holder that is none ---- */

struct liar {
    int fd;
    uint64_t random;
    kl__serving *serving; /* of a real store, whose answers are spoilt */
    atomic_bool stop;
};

/* One connection: an honest hello, then answers that are spoilt. */
static void lie(struct liar *liar, int fd)
{
    kl__frame request = {0};
    while (!atomic_load(&liar->stop) && kl__frame_receive(fd, &request) == 0) {
        kl__serve(liar->serving, &request);
        kl__out *out = &liar->serving->out;
        size_t length = out->length;
        if (kl__frame_call(&request) != KL_WIRE_HELLO)
            spoil(&liar->random, out->bytes + KL_FRAME_HEAD, length - KL_FRAME_HEAD);
        if (kl__frame_send(fd, out) != 0)
            break;
    }
    kl__frame_free(&request);
    close(fd);
}

static void *run_liar(void *arg)
{
    struct liar *liar = arg;
    int fd;
    while ((fd = accept(liar->fd, NULL, NULL)) >= 0)
        lie(liar, fd);
    return NULL;
}

/* Whatever comes back: no crash, nothing outside the caller's arrays, and a result of the table. */
static void call_all(kl__client *client, uint32_t partition, kl_arena *arena)
{
    kl_place place = {partition, 1};
    kl_task tasks[4];
    kl_stub stubs[4];
    kl_record records[4];
    size_t count = 0;
    int64_t ms;
    uint64_t seen = 0;
    kl_counts counts;
    kl_ref ref = {.place = place, .id = {{0x10, 1}}};
    kl_settled settled = {.id = ref.id, .position = 1, .outcome = KL_RETRY};
    kl_settle batch = {.place = place, .tasks = &settled, .count = 1};
    kl_fence fence = {.place = place, .epoch = 1};
    kl_scan scan = {.place = place, .stubs = stubs, .max = 4};
    kl_write write = {.name = kl_str("one"), .value = kl_str("value")};
    kl_bytes name = kl_str("one");
    const kl_rc rcs[] = {
        kl__client_now(client, &ms),
        kl__client_counts(client, place, NULL, &counts),
        kl__client_wait(client, partition, 0, &seen),
        kl__client_scan(client, &scan, 1),
        kl__client_read(client, &ref, 1, arena, tasks, &count),
        kl__client_settle(client, &batch, 1),
        kl__client_fence(client, &fence, 1),
        kl__client_results(client, place, &ref.id, NULL, 4, arena, tasks, &count),
        kl__client_find(client, &(kl_find){.max = 4}, arena, tasks, &count),
        kl__client_put(client, &write, 1),
        kl__client_get(client, &name, 1, arena, records),
        kl__client_list(client, kl_str(""), kl_str(""), 4, arena, records, &count),
    };
    for (size_t i = 0; i < sizeof rcs / sizeof rcs[0]; i++)
        CHECK(rcs[i] <= KL_OK && strcmp(kl_rc_name(rcs[i]), "unknown") != 0);
    CHECK(count <= 4 && (scan.count <= 4));
}

static void put_something(struct bench *bench)
{
    kl__out out = {0};
    static const kl__wire_call calls[] = {KL_WIRE_APPEND, KL_WIRE_SETTLE, KL_WIRE_PUT};
    for (int i = 0; i < 3; i++) {
        write_request(bench, calls[i], &out);
        CHECK_INT(serve(bench, &out).rc, KL_OK);
    }
    kl__out_free(&out);
}

TEST(broken_answers_break_no_client)
{
    struct bench bench;
    struct sockaddr_un address;
    char dir[WORKDIR_BYTES];
    int dir_fd;
    kl__client *client = NULL;
    kl_arena arena = {0};
    pthread_t thread;
    REQUIRE(bench_begin(&bench));
    put_something(&bench);
    struct liar liar = {.fd = socket(AF_UNIX, SOCK_STREAM, 0), .random = test_seed(), .serving = &bench.serving};
    REQUIRE(workdir_make(dir));
    CHECK_OK(kl__socket_address(dir, &address, &dir_fd));
    REQUIRE(bind(liar.fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(liar.fd, 8) == 0);
    REQUIRE(pthread_create(&thread, NULL, run_liar, &liar) == 0);
    CHECK_OK(kl__client_open(dir, NULL, NULL, &client));
    CHECK_OK(kl__client_connect(client));
    for (uint64_t i = 0, count = test_ops(2000); i < count; i++) {
        call_all(client, bench.partition, &arena);
        kl_arena_reset(&arena);
    }
    kl__client_close(client);
    atomic_store(&liar.stop, true);
    shutdown(liar.fd, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(liar.fd);
    kl_arena_free(&arena);
    CHECK(workdir_remove(dir));
    bench_end(&bench);
}

/* ---- Frames ---- */

TEST(a_frame_longer_than_any_is_not_waited_for)
{
    int ends[2];
    kl__frame frame = {0};
    uint8_t head[KL_FRAME_HEAD] = {0, 0, 0, 0xff, KL_WIRE_VERSION};
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(send(ends[0], head, sizeof head, 0) == sizeof head);
    CHECK_INT(kl__frame_receive(ends[1], &frame), -EPROTO);
    CHECK(frame.room <= 64 << 10);
    kl__frame_free(&frame);
    close(ends[0]);
    close(ends[1]);
}

TEST(a_peer_that_has_gone_is_an_error_and_no_signal)
{
    int ends[2];
    kl__out out = {0};
    kl__frame frame = {0};
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    close(ends[1]);
    kl__out_request(&out, KL_WIRE_NOW, 1);
    CHECK_INT(kl__frame_send(ends[0], &out), -EPIPE);
    CHECK_INT(kl__frame_receive(ends[0], &frame), -ENOTCONN);
    kl__out_free(&out);
    kl__frame_free(&frame);
    close(ends[0]);
}
