/* test_socket.c - a disk store for several processes: who holds it, who reaches it, and what happens when a holder
 * ends.
 *
 * Other processes are children that do one thing for each byte they are sent and answer with one. They are forked while
 * this process has no threads. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "disk_rig.h"
#include "store/engines.h"
#include "store/socket/socket.h"

enum { PATIENCE_MS = 60000 };

/* ---- Several handles in one process ---- */

/* A store that listens. */
static bool begin(struct rig *rig)
{
    if (!rig_begin(rig, RIG_SEGMENT))
        return false;
    rig->opts.no_socket = false;
    return rig_reopen(rig);
}

/* A second handle on the same directory. */
static bool join_rig(const struct rig *first, struct rig *second)
{
    *second = *first;
    second->arena = (kl_arena){0};
    CHECK_OK(rig_open(second));
    return second->store != NULL;
}

static void leave_rig(struct rig *second)
{
    rig_close(second);
    kl_arena_free(&second->arena);
}

/* Only a holder appends without waiting. */
static bool is_holder(const struct rig *rig) { return kl_store_info_of(rig->store).can & KL_STORE_ASYNC; }

static bool has_socket(const struct rig *rig, struct stat *ret_status)
{
    char path[WORKDIR_BYTES + 32];
    snprintf(path, sizeof path, "%s/socket", rig->data);
    return lstat(path, ret_status) == 0;
}

/* Listens in a directory in which this user may not connect. */
static int listen_shut(const char *dir)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%.80s/socket", dir);
    CHECK(bind(fd, (const struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 1) == 0);
    CHECK(chmod(address.sun_path, 0) == 0 && chmod(dir, 0755) == 0);
    return fd;
}

TEST(a_directory_that_another_user_has_open_is_told_as_such)
{
    enum { NOBODY = 65534 };
    char dir[WORKDIR_BYTES], url[WORKDIR_BYTES + 8];
    kl_store *store = NULL;
    REQUIRE(workdir_make(dir));
    int fd = listen_shut(dir);
    snprintf(url, sizeof url, "disk:%s", dir);
    uid_t self = geteuid();
    CHECK(self != 0 || seteuid(NOBODY) == 0); /* nothing is shut for root */
    kl_rc rc = kl_store_open(url, NULL, &store);
    CHECK(seteuid(self) == 0);
    CHECK_INT(rc, KL_ESYSTEM);
    CHECK_CONTAINS(kl_error_text(), "belongs to another user; run this as that user, or name another store");
    kl_store_close(store);
    close(fd);
    CHECK(workdir_remove(dir));
}

TEST(two_handles_share_a_directory)
{
    struct rig first, second;
    REQUIRE(begin(&first));
    REQUIRE(join_rig(&first, &second));
    CHECK(is_holder(&first) && !is_holder(&second));
    CHECK(kl_store_info_of(first.store).can & KL_STORE_SHARED);
    CHECK(kl_store_info_of(second.store).can & KL_STORE_SHARED);
    CHECK_INT(first.partition, second.partition);
    rig_append(&second, 1, 1000, 200);
    CHECK_INT(rig_waiting(&first), 1000);
    CHECK(rig_is_whole(&first, 77, 200) && rig_is_whole(&second, 77, 200));
    rig_settle(&first, 1, 400);
    CHECK_INT(rig_waiting(&second), 600);
    leave_rig(&second);
    rig_end(&first);
}

TEST(what_a_shared_disk_can_is_what_a_disk_can)
{
    CHECK_INT(kl__engine_shared.can, kl__engine_disk.can | KL_STORE_SHARED);
}

TEST(the_socket_is_its_owners_alone_and_goes_with_the_store)
{
    struct rig rig;
    struct stat status;
    REQUIRE(begin(&rig));
    REQUIRE(has_socket(&rig, &status));
    CHECK(S_ISSOCK(status.st_mode));
    CHECK_INT(status.st_mode & 0777, 0600);
    rig_close(&rig);
    CHECK(!has_socket(&rig, &status));
    rig_end(&rig);
}

TEST(what_a_killed_holder_left_is_replaced)
{
    struct rig rig, second;
    struct sockaddr_un address;
    int dir_fd, fd = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(begin(&rig));
    rig_close(&rig);
    CHECK_OK(kl__socket_address(rig.data, &address, &dir_fd));
    CHECK_INT(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd); /* the name stays, and refuses everybody */
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store && is_holder(&rig));
    REQUIRE(join_rig(&rig, &second));
    CHECK(!is_holder(&second));
    leave_rig(&second);
    rig_end(&rig);
}

/* 108 bytes are all that an address takes. */
TEST(a_long_path_is_no_obstacle)
{
    struct rig rig;
    char path[1024];
    kl_store *first = NULL, *second = NULL;
    uint32_t a = 0, b = 0;
    REQUIRE(begin(&rig));
    size_t length = (size_t)snprintf(path, sizeof path, "disk:%s/", rig.dir);
    memset(path + length, 'd', 240);
    strcpy(path + length + 240, "/data");
    path[length + 240] = 0;
    CHECK_INT(mkdir(path + 5, 0700), 0);
    path[length + 240] = '/';
    CHECK_OK(kl_store_open(path, NULL, &first));
    CHECK_OK(kl_store_open(path, NULL, &second));
    REQUIRE(first && second);
    CHECK(!(kl_store_info_of(second).can & KL_STORE_ASYNC));
    CHECK_OK(kl_store_partition(second, "other", 1, &a));
    CHECK_OK(kl_store_partition(first, "other", 1, &b));
    CHECK_INT(a, b);
    kl_store_close(second);
    kl_store_close(first);
    rig_end(&rig);
}

TEST(no_socket_means_one_process_and_no_waiting)
{
    struct rig rig;
    struct stat status;
    kl_store *second;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    CHECK(rig.opts.no_socket);
    CHECK(!has_socket(&rig, &status));
    CHECK(!(kl_store_info_of(rig.store).can & KL_STORE_SHARED));
    int64_t start_ns = kl__monotonic_ns();
    CHECK_INT(kl_store_open(rig.url, &rig.opts, &second), KL_EBUSY);
    CHECK(kl__monotonic_ns() - start_ns < INT64_C(5000000000)); /* who waits does so twice as long (client.c) */
    CHECK_CONTAINS(kl_error_text(), "is open in process");
    rig_end(&rig);
}

TEST(a_holder_that_does_not_listen_is_named)
{
    struct rig rig;
    kl_store *second;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    CHECK_INT(kl_store_open(rig.url, NULL, &second), KL_EBUSY);
    CHECK_CONTAINS(kl_error_text(), "is open in process");
    rig_end(&rig);
}

enum { PASSED_MS = 11000 /* longer than one holder may take */ };

struct passing {
    const char *dir;
    int64_t end_ns;
    long holder;
};

/* Each time that nobody listens, somebody else has the directory; in the end nobody has. */
static kl_rc pass_on(void *ctx)
{
    struct passing *passing = ctx;
    char path[WORKDIR_BYTES + 32];
    snprintf(path, sizeof path, "%s/lock", passing->dir);
    FILE *file = fopen(path, "w");
    if (!file)
        return KL_ESYSTEM;
    fprintf(file, "%ld\n", ++passing->holder);
    fclose(file);
    return kl__monotonic_ns() < passing->end_ns ? KL_EBUSY : KL_OK;
}

TEST(who_waits_is_passed_by_many_short_holders)
{
    struct rig rig;
    kl__client *client = NULL;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_close(&rig);
    struct passing passing = {.dir = rig.data, .end_ns = kl__deadline_ns(PASSED_MS)};
    CHECK_OK(kl__client_open(rig.data, pass_on, &passing, &client));
    CHECK_INT(kl__client_connect(client), KL_MOVED);
    CHECK(passing.holder > 1);
    kl__client_close(client);
    rig_end(&rig);
}

/* ---- Waiting ---- */

struct waiter {
    struct rig *rig;
    uint64_t seen;
    int64_t wait_ms;
    kl_rc rc;
    atomic_bool begins;
};

static void *run_waiter(void *arg)
{
    struct waiter *waiter = arg;
    waiter->begins = true;
    waiter->rc = kl_store_wait(waiter->rig->store, waiter->rig->partition, waiter->wait_ms, &waiter->seen);
    return NULL;
}

static bool waiter_begins(void *ctx) { return ((struct waiter *)ctx)->begins; }

TEST(a_call_that_waits_holds_up_no_other)
{
    struct rig first, second;
    REQUIRE(begin(&first));
    REQUIRE(join_rig(&first, &second));
    struct waiter waiter = {.rig = &second, .wait_ms = PATIENCE_MS};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, run_waiter, &waiter) == 0);
    CHECK(rig_await(waiter_begins, &waiter, "the wait begins"));
    CHECK_INT(rig_waiting(&second), 0); /* it would come back in a minute */
    rig_append(&first, 1, 1, 10);
    pthread_join(thread, NULL);
    CHECK_INT(waiter.rc, KL_OK);
    CHECK(waiter.seen != 0);
    uint64_t seen = waiter.seen;
    CHECK_OK(kl_store_wait(second.store, second.partition, 0, &seen));
    CHECK(seen == waiter.seen); /* nothing has come since */
    leave_rig(&second);
    rig_end(&first);
}

/* What is seen of one holder is never taken for what is seen of the next, even when both have counted as far. */
TEST(a_wait_that_outlives_its_holder_returns_to_look)
{
    struct rig first, second;
    REQUIRE(begin(&first));
    REQUIRE(join_rig(&first, &second));
    struct waiter waiter = {.rig = &second, .wait_ms = PATIENCE_MS};
    rig_append(&first, 1, 1, 10);
    CHECK_OK(kl_store_wait(second.store, second.partition, 0, &waiter.seen));
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, run_waiter, &waiter) == 0);
    CHECK(rig_await(waiter_begins, &waiter, "the wait begins"));
    int64_t start_ns = kl__monotonic_ns();
    rig_close(&first);
    pthread_join(thread, NULL);
    CHECK_INT(waiter.rc, KL_OK);
    CHECK(kl__monotonic_ns() - start_ns < INT64_C(1000000) * PATIENCE_MS / 2);
    CHECK_INT(rig_waiting(&second), 1);
    CHECK(is_holder(&second));
    leave_rig(&second);
    rig_end(&first);
}

/* A connection like that of a client that has nothing to do. */
static int dial_idle(const struct rig *rig)
{
    struct sockaddr_un address;
    int dir_fd, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_OK(kl__socket_address(rig->data, &address, &dir_fd));
    CHECK_INT(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* The oldest idle link is the client's: it is closed first, and its next call does not notice. */
TEST(idle_clients_make_room_for_new_ones_and_lose_nothing)
{
    struct rig first, second, third;
    static int idle[KL_CONNECTIONS_MAX];
    REQUIRE(begin(&first));
    REQUIRE(join_rig(&first, &second));
    rig_append(&second, 1, 10, 10);
    for (int i = 0; i < KL_CONNECTIONS_MAX; i++)
        idle[i] = dial_idle(&first);
    REQUIRE(join_rig(&first, &third));
    kl_entry entry = rig_entry(&second, 11, 10);
    CHECK_OK(kl_store_append(second.store, &entry, 1, NULL)); /* one that must not be made twice */
    CHECK_INT(rig_waiting(&third), 11);
    for (int i = 0; i < KL_CONNECTIONS_MAX; i++)
        close(idle[i]);
    leave_rig(&third);
    leave_rig(&second);
    rig_end(&first);
}

/* One end for the server, the other one for the test. False: there was no room, and it is closed. */
static bool adopt(kl__server *server, int *ret_fd)
{
    int pair[2] = {-1, -1};
    char byte;
    CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    kl__server_adopt(server, pair[1], NULL);
    bool closed = recv(pair[0], &byte, 1, MSG_DONTWAIT) == 0;
    if (closed)
        close(pair[0]);
    else
        *ret_fd = pair[0];
    return !closed;
}

/* Who was at work a moment ago is not closed for another, so it may take some tries. */
TEST(a_connection_that_is_handed_over_takes_the_place_of_an_idle_one)
{
    struct rig rig;
    static int idle[KL_CONNECTIONS_MAX];
    kl__server *server;
    int more = -1;
    char byte;
    REQUIRE(begin(&rig));
    REQUIRE(kl__server_open(rig.store, 0, &server) == KL_OK);
    for (int i = 0; i < KL_CONNECTIONS_MAX; i++)
        CHECK(adopt(server, &idle[i]));
    int64_t until_ns = kl__deadline_ns(60000);
    bool adopted = false;
    while (!adopted && kl__monotonic_ns() < until_ns)
        adopted = adopt(server, &more);
    CHECK(adopted);
    CHECK_INT(recv(idle[0], &byte, 1, 0), 0); /* the one that was idle longest */
    kl__server_stop(server);
    CHECK_INT(recv(more, &byte, 1, 0), 0);
    close(more);
    for (int i = 0; i < KL_CONNECTIONS_MAX; i++)
        close(idle[i]);
    rig_end(&rig);
}

/* ---- The holder closes ---- */

TEST(a_client_becomes_the_holder_when_the_holder_closes)
{
    struct rig first, second, third;
    REQUIRE(begin(&first));
    REQUIRE(join_rig(&first, &second));
    REQUIRE(join_rig(&first, &third));
    kl_token token = {{7}};
    kl_entry entry = rig_entry(&second, 1, 10);
    CHECK_OK(kl_store_append(second.store, &entry, 1, &token));
    rig_close(&first);
    CHECK_OK(kl_store_append(second.store, &entry, 1, &token)); /* known, though another wrote it down */
    CHECK(is_holder(&second) && !is_holder(&third));
    CHECK_INT(rig_waiting(&third), 1); /* by the number that the first holder gave it */
    rig_settle(&third, 1, 1);
    CHECK_OK(kl_store_append(third.store, &entry, 1, &token));
    CHECK_INT(rig_waiting(&second), 0);
    leave_rig(&third);
    leave_rig(&second);
    rig_end(&first);
}

TEST(a_client_finds_its_directory_after_chdir)
{
    struct rig rig;
    char before[1024];
    kl_store *first = NULL, *second = NULL;
    int64_t ms;
    REQUIRE(begin(&rig));
    REQUIRE(getcwd(before, sizeof before) && chdir(rig.dir) == 0);
    CHECK_OK(kl_store_open("disk:here", NULL, &first));
    CHECK_OK(kl_store_open("disk:here", NULL, &second));
    CHECK_INT(chdir("/"), 0);
    REQUIRE(first && second);
    CHECK_OK(kl_store_now(second, &ms));
    CHECK_INT(chdir(rig.dir), 0);
    kl_store_close(first); /* whose own path is as it was given */
    CHECK_INT(chdir("/"), 0);
    CHECK_OK(kl_store_now(second, &ms));
    CHECK(kl_store_info_of(second).can & KL_STORE_ASYNC);
    kl_store_close(second);
    CHECK_INT(chdir(before), 0);
    rig_end(&rig);
}

/* ---- Another store stands there ---- */

enum { OTHERS = 3 };

static void put_aside(const struct rig *rig, const char *ending)
{
    char aside[sizeof rig->data + 16];
    snprintf(aside, sizeof aside, "%s.%s", rig->data, ending);
    CHECK_INT(rename(rig->data, aside), 0);
}

static void put_back(const struct rig *rig, const char *ending)
{
    char aside[sizeof rig->data + 16];
    snprintf(aside, sizeof aside, "%s.%s", rig->data, ending);
    CHECK(access(rig->data, F_OK) != 0 || workdir_remove(rig->data));
    CHECK_INT(rename(aside, rig->data), 0);
}

/* A client with a task in the store whose holder has closed it, and which is elsewhere now. */
static bool begin_aside(struct rig *first, struct rig *second)
{
    if (!begin(first) || !join_rig(first, second))
        return false;
    rig_append(second, 1, 1, 10);
    rig_close(first);
    put_aside(first, "old");
    return true;
}

/* Whatever names a partition is refused, and does nothing. */
static void check_refused(struct rig *rig, uint32_t partition, const char *part)
{
    kl_counts counts;
    uint64_t seen = 0;
    kl_entry entry = rig_entry(rig, 2, 10);
    entry.place.partition = partition;
    CHECK_INT(kl_store_append(rig->store, &entry, 1, NULL), KL_ESYSTEM);
    CHECK_CONTAINS(kl_error_text(), part);
    CHECK_CONTAINS(kl_error_text(), rig->data);
    CHECK_INT(kl_store_counts(rig->store, (kl_place){partition, KL_ALL_SHARDS}, NULL, &counts), KL_ESYSTEM);
    CHECK_INT(kl_store_wait(rig->store, partition, 0, &seen), KL_ESYSTEM);
}

static void end_aside(struct rig *first, struct rig *second)
{
    put_back(first, "old");
    rig_append(second, 3, 1, 10);
    CHECK_INT(rig_waiting(second), 2);
    leave_rig(second);
    rig_end(first);
}

TEST(a_client_makes_no_new_store_where_its_own_is_gone)
{
    struct rig first, second;
    REQUIRE(begin_aside(&first, &second));
    check_refused(&second, second.partition, "is gone");
    CHECK(access(first.data, F_OK) != 0);
    end_aside(&first, &second);
}

/* Its partition has the number that another one has there. */
TEST(a_client_takes_no_other_store_for_its_own)
{
    struct rig first, second, other;
    REQUIRE(begin_aside(&first, &second));
    REQUIRE(join_rig(&first, &other));
    CHECK_INT(other.partition, second.partition);
    rig_append(&other, 1, OTHERS, 10);
    check_refused(&second, second.partition, "another store"); /* which somebody holds */
    CHECK(rig_reopen(&other));
    CHECK_INT(rig_waiting(&other), OTHERS);
    rig_close(&other);
    check_refused(&second, second.partition, "another store"); /* or which could be taken over */
    CHECK(rig_reopen(&other));
    CHECK_INT(rig_waiting(&other), OTHERS);
    leave_rig(&other);
    end_aside(&first, &second);
}

/* Its partition was made later than the copy. */
TEST(a_client_does_not_use_a_partition_that_a_restored_copy_lacks)
{
    struct rig first, second;
    uint32_t later = 0;
    char copy[sizeof first.data + 16];
    REQUIRE(begin(&first));
    rig_append(&first, 1, 1, 10);
    rig_close(&first);
    snprintf(copy, sizeof copy, "%s.copy", first.data);
    CHECK(workdir_copy(first.data, copy));
    CHECK_OK(rig_open(&first));
    REQUIRE(first.store && join_rig(&first, &second));
    CHECK_OK(kl_store_partition(second.store, "later", 1, &later));
    rig_close(&first);
    put_aside(&first, "old");
    put_back(&first, "copy");
    check_refused(&second, later, "older copy");
    end_aside(&first, &second);
}

/* ---- Answers larger than a frame ---- */

static uint64_t count_results(struct rig *rig, const kl_task_id *job, size_t max, size_t bytes)
{
    kl_task *tasks = calloc(max, sizeof *tasks);
    size_t count = 0;
    kl_arena_reset(&rig->arena);
    CHECK_OK(kl_store_results(rig->store, rig_place(rig, 0), job, NULL, max, &rig->arena, tasks, &count));
    for (size_t i = 0; i < count; i++) {
        CHECK_INT(tasks[i].entry.payload.len, bytes);
        CHECK(i == 0 || memcmp(&tasks[i - 1].entry.id, &tasks[i].entry.id, sizeof(kl_task_id)) < 0);
    }
    kl_find find = {.job = *job, .max = max};
    size_t found = 0;
    CHECK_OK(kl_store_find(rig->store, &find, &rig->arena, tasks, &found));
    CHECK_INT(found, count);
    free(tasks);
    return count;
}

TEST(large_answers_come_in_parts)
{
    enum { TASKS = 40, BYTES = 600 << 10 };
    struct rig first, second;
    kl_task_id job = {{1}};
    REQUIRE(begin(&first));
    REQUIRE(join_rig(&first, &second));
    for (uint64_t i = 0; i < TASKS; i++) {
        kl_entry entry = rig_entry(&second, i * RIG_SHARDS, BYTES);
        entry.job = job;
        kl_settled settled = {.id = entry.id, .outcome = KL_DEAD, .attempts = 1, .keep_ms = 3600000};
        kl_settle batch = {.place = entry.place, .tasks = &settled, .count = 1};
        CHECK_OK(kl_store_append(second.store, &entry, 1, NULL));
        CHECK_OK(rig_set_positions(&second, entry.place, &settled, 1));
        CHECK_OK(kl_store_settle(second.store, &batch, 1));
    }
    CHECK_INT(count_results(&second, &job, 100, BYTES), TASKS);
    CHECK_INT(count_results(&second, &job, 33, BYTES), 33);
    leave_rig(&second);
    rig_end(&first);
}

TEST(large_records_come_in_parts)
{
    enum { RECORDS = 100 };
    struct rig first, second;
    static char value[KL_RECORD_BYTES_MAX], names[RECORDS][16];
    kl_bytes asked[RECORDS + 1];
    kl_record records[RECORDS + 1] = {{.version = 0}};
    size_t count = 0;
    REQUIRE(begin(&first));
    REQUIRE(join_rig(&first, &second));
    for (int i = 0; i < RECORDS; i++) {
        snprintf(names[i], sizeof names[i], "name-%03d", i);
        asked[i] = kl_str(names[i]);
        kl_write write = {.name = asked[i], .value = {value, sizeof value}};
        CHECK_OK(kl_store_put(second.store, &write, 1));
    }
    asked[RECORDS] = kl_str("none");
    CHECK_OK(kl_store_get(second.store, asked, RECORDS + 1, &second.arena, records));
    for (int i = 0; i < RECORDS; i++)
        CHECK(records[i].value.len == sizeof value && memcmp(records[i].name.data, names[i], 8) == 0);
    CHECK_INT(records[RECORDS].version, 0);
    CHECK_OK(kl_store_list(second.store, kl_str("name"), kl_str(""), RECORDS + 1, &second.arena, records, &count));
    CHECK_INT(count, RECORDS);
    for (int i = 0; i < RECORDS && count == RECORDS; i++)
        CHECK(records[i].value.len == sizeof value && memcmp(records[i].name.data, names[i], 8) == 0);
    leave_rig(&second);
    rig_end(&first);
}

TEST(more_scans_than_a_frame_takes_are_asked_for_in_turn)
{
    enum { SCANS = 12 };
    struct rig first, second;
    REQUIRE(begin(&first));
    REQUIRE(join_rig(&first, &second));
    rig_append(&first, 0, 3200, 10);
    kl_stub *stubs = calloc((size_t)SCANS * KL_BATCH_MAX, sizeof *stubs);
    kl_scan scans[SCANS];
    REQUIRE(stubs);
    for (uint32_t i = 0; i < SCANS; i++)
        scans[i] =
            (kl_scan){.place = {second.partition, i}, .stubs = stubs + (size_t)i * KL_BATCH_MAX, .max = KL_BATCH_MAX};
    CHECK_OK(kl_store_scan(second.store, scans, SCANS));
    for (uint32_t i = 0; i < SCANS; i++) {
        CHECK_INT(scans[i].count, 200);
        CHECK_INT(rig_number(&scans[i].stubs[199].id), 199 * RIG_SHARDS + i);
    }
    free(stubs);
    leave_rig(&second);
    rig_end(&first);
}

/* ---- Other processes ---- */

struct other {
    pid_t pid;
    int to, from;
};

/* One process: opens, and does what it is told. */
static void obey(struct rig *rig, int in, int out)
{
    uint64_t next = (uint64_t)getpid() << 20;
    char byte, answer;
    while (read(in, &byte, 1) == 1) {
        answer = 'y';
        if (byte == 'o')
            answer = rig_open(rig) == KL_OK ? 'y' : 'n';
        else if (byte == 'w')
            answer = is_holder(rig) ? 'h' : 'c';
        else if (byte == 'a')
            rig_append(rig, next++, 1, 100);
        else if (byte == 'q' || byte == 'x')
            rig_close(rig);
        if (test_failed() || write(out, &answer, 1) != 1)
            _exit(1);
        if (byte == 'x')
            _exit(0);
    }
    _exit(1);
}

static bool start_other(struct rig *rig, struct other *ret_other)
{
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0)
        return false;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(to[1]);
        close(from[0]);
        obey(rig, to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    *ret_other = (struct other){pid, to[1], from[0]};
    return pid > 0;
}

/* Tells it to do something, and waits until it has. 0: it is gone. */
static char tell(struct other *other, char what)
{
    char answer = 0;
    if (write(other->to, &what, 1) != 1 || read(other->from, &answer, 1) != 1)
        return 0;
    return answer;
}

static void end_other(struct other *other)
{
    int status = 0;
    CHECK_INT(tell(other, 'x'), 'y');
    close(other->to);
    CHECK_INT(waitpid(other->pid, &status, 0), other->pid);
    CHECK_INT(status, 0);
    close(other->from);
}

static void kill_other(struct other *other)
{
    CHECK_INT(kill(other->pid, SIGKILL), 0);
    CHECK_INT(waitpid(other->pid, NULL, 0), other->pid);
    close(other->to);
    close(other->from);
}

/* Of two clients one becomes the holder and the other its client: by being used, when it is killed and when it closes.
 */
TEST(exactly_one_client_becomes_the_holder)
{
    struct rig rig;
    struct other others[3];
    REQUIRE(begin(&rig));
    rig_close(&rig); /* no threads while forking */
    for (int i = 0; i < 3; i++)
        REQUIRE(start_other(&rig, &others[i]));
    for (int i = 0; i < 3; i++) {
        CHECK_INT(tell(&others[i], 'o'), 'y');
        CHECK_INT(tell(&others[i], 'w'), i == 0 ? 'h' : 'c');
        CHECK_INT(tell(&others[i], 'a'), 'y');
    }
    kill_other(&others[0]);
    CHECK(write(others[1].to, "a", 1) == 1 && write(others[2].to, "a", 1) == 1); /* both at once */
    char answer[2] = "";
    CHECK(read(others[1].from, &answer[0], 1) == 1 && read(others[2].from, &answer[1], 1) == 1);
    CHECK(answer[0] == 'y' && answer[1] == 'y');
    char one = tell(&others[1], 'w'), two = tell(&others[2], 'w');
    CHECK((one == 'h' && two == 'c') || (one == 'c' && two == 'h'));
    struct other *holder = one == 'h' ? &others[1] : &others[2], *client = one == 'h' ? &others[2] : &others[1];
    CHECK_INT(tell(holder, 'q'), 'y');
    CHECK_INT(tell(client, 'a'), 'y');
    CHECK_INT(tell(client, 'w'), 'h');
    end_other(holder);
    end_other(client);
    CHECK_OK(rig_open(&rig));
    CHECK_INT(rig_waiting(&rig), 6);
    rig_end(&rig);
}

/* ---- A holder is killed under load ---- */

enum { LOADERS = 4, LOAD_TASKS = 120 };

struct load {
    struct rig *rig;
    uint64_t first;
    atomic_uint *made;
    uint32_t again; /* calls that were to be made again */
    kl_rc wrong;    /* a result that nobody should see */
};

/* Whether to make the call again. */
static bool again(struct load *load, kl_rc rc)
{
    if (rc == KL_OK)
        return false;
    load->again++;
    if (kl_rc_class(rc) != KL_CLASS_RETRY)
        load->wrong = rc;
    return load->wrong == KL_OK;
}

/* Every third task is settled, and every other append has no token: it is told when it is in doubt, and knows that
 * nobody else settles what it has put. */
static void *run_load(void *arg)
{
    struct load *load = arg;
    kl_store *store = load->rig->store;
    for (uint64_t i = 0; i < LOAD_TASKS && load->wrong == KL_OK; i++) {
        kl_entry entry = rig_entry(load->rig, load->first + i, 100);
        kl_token token;
        memcpy(&token, &entry.id, sizeof token);
        while (again(load, kl_store_append(store, &entry, 1, i % 2 ? &token : NULL)))
            ;
        kl_settled settled = {.id = entry.id, .outcome = KL_DONE, .attempts = 1};
        kl_settle batch = {.place = entry.place, .tasks = &settled, .count = 1};
        while (i % 3 == 0 && again(load, rig_set_positions(load->rig, entry.place, &settled, 1)))
            ;
        while (i % 3 == 0 && again(load, kl_store_settle(store, &batch, 1)))
            ;
        atomic_fetch_add(load->made, 1);
    }
    return NULL;
}

static bool half_is_made(void *ctx) { return atomic_load((atomic_uint *)ctx) >= LOADERS * LOAD_TASKS / 2; }

static void check_load(struct rig *rig)
{
    CHECK_INT(rig_waiting(rig), LOADERS * LOAD_TASKS * 2 / 3);
    for (uint64_t i = 0; i < LOADERS * LOAD_TASKS; i++)
        CHECK(rig_is_whole(rig, i, 100) == (i % LOAD_TASKS % 3 != 0));
}

TEST(a_client_goes_on_when_its_holder_is_killed_under_load)
{
    struct rig rig;
    struct other other;
    atomic_uint made = 0;
    pthread_t threads[LOADERS];
    struct load loads[LOADERS];
    REQUIRE(begin(&rig));
    rig_close(&rig);
    REQUIRE(start_other(&rig, &other));
    CHECK_INT(tell(&other, 'o'), 'y');
    CHECK_OK(rig_open(&rig));
    REQUIRE(rig.store && !is_holder(&rig));
    for (uint64_t i = 0; i < LOADERS; i++) {
        loads[i] = (struct load){.rig = &rig, .first = i * LOAD_TASKS, .made = &made};
        REQUIRE(pthread_create(&threads[i], NULL, run_load, &loads[i]) == 0);
    }
    CHECK(rig_await(half_is_made, &made, "half of the load"));
    kill_other(&other);
    for (int i = 0; i < LOADERS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(loads[i].wrong, KL_OK);
        CHECK(loads[i].again <= 2);
    }
    CHECK(is_holder(&rig));
    check_load(&rig);
    CHECK(rig_reopen(&rig));
    check_load(&rig);
    rig_end(&rig);
}
