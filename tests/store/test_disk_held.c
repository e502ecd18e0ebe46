/* test_disk_held.c - who holds a directory when processes fork, and who may not write it. */
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "disk_rig.h"

/* Forks, and the child stays until the other end of the pipe is closed. */
static pid_t fork_idle(int ret_ends[2])
{
    if (pipe(ret_ends) != 0)
        return -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ret_ends[1]);
        _exit(read(ret_ends[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(ret_ends[0]);
    return child;
}

TEST(a_forked_child_does_not_keep_a_store_that_was_closed)
{
    struct rig rig;
    int ends[2], status = 1;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    pid_t child = fork_idle(ends);
    REQUIRE(child > 0);
    rig_append(&rig, 1, 10, 100);
    rig_close(&rig);
    CHECK_OK(rig_open(&rig));
    if (rig.store)
        CHECK_INT(rig_waiting(&rig), 10);
    close(ends[1]);
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
    rig_end(&rig);
}

/* Opens, forks, and ends without closing: the grandchild holds on. */
static void leave_child(struct rig *rig, const int ends[2])
{
    char byte;
    if (rig_open(rig) != KL_OK)
        _exit(1);
    if (fork() == 0) {
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
    }
    _exit(0);
}

TEST(a_child_of_a_holder_that_has_ended_is_blamed_and_not_the_holder)
{
    struct rig rig;
    char pid[32];
    int ends[2], status = 1;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_close(&rig); /* no threads while forking */
    REQUIRE(pipe(ends) == 0);
    fflush(NULL);
    pid_t holder = fork();
    if (holder == 0)
        leave_child(&rig, ends);
    close(ends[0]);
    REQUIRE(waitpid(holder, &status, 0) == holder);
    CHECK_INT(status, 0);
    CHECK_INT(rig_open(&rig), KL_EBUSY);
    snprintf(pid, sizeof pid, "%lld", (long long)holder);
    CHECK_CONTAINS(kl_error_text(), "forked by one which had it open and has ended");
    CHECK(!strstr(kl_error_text(), pid));
    close(ends[1]);
    rig_end(&rig);
}

/* As a user that may be refused. */
static void open_as_nobody(struct rig *rig)
{
    enum { NOBODY = 65534 };
    if (geteuid() == 0 && setuid(NOBODY) != 0)
        _exit(2);
    kl_rc rc = rig_open(rig);
    bool told = rc == KL_ESYSTEM && strstr(kl_error_text(), "this user must be able to write");
    if (!told)
        printf("# %s: %s\n", kl_rc_name(rc), rc == KL_OK ? "" : kl_error_text());
    fflush(stdout);
    _exit(told ? 0 : 1);
}

TEST(who_may_not_write_the_directory_is_told_what_must_be_writable)
{
    struct rig rig;
    char command[2 * WORKDIR_BYTES];
    int status = 1;
    REQUIRE(rig_begin(&rig, RIG_SEGMENT));
    rig_close(&rig); /* no threads while forking */
    snprintf(command, sizeof command, "chown -R 65534 '%s'", rig.dir);
    REQUIRE(geteuid() != 0 || system(command) == 0);
    REQUIRE(chmod(rig.data, 0555) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        open_as_nobody(&rig);
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
    CHECK_INT(chmod(rig.data, 0700), 0);
    rig_end(&rig);
}
