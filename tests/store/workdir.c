/* workdir.c - see workdir.h. */
#include "workdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 512 };

bool workdir_make(char ret_path[WORKDIR_BYTES])
{
    const char *tmp = getenv("TMPDIR");
    snprintf(ret_path, WORKDIR_BYTES, "%.64s/keyline-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(ret_path) != NULL;
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

bool workdir_remove(const char *path) { return nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0; }

/* ---- Copying ---- */

static bool pour(int from, int to)
{
    static const size_t piece = 1 << 16;
    char *bytes = malloc(piece);
    ssize_t got = bytes ? 1 : -1;
    while (got > 0 && (got = read(from, bytes, piece)) > 0)
        if (write(to, bytes, (size_t)got) != got)
            got = -1;
    free(bytes);
    return got == 0;
}

static bool copy_file(const char *from, const char *to)
{
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return errno == ENOENT;
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = out >= 0 && pour(in, out);
    close(in);
    if (out >= 0)
        close(out);
    return ok;
}

static bool copy_entry(const char *from, const char *to, const char *name)
{
    char source[PATH_BYTES], target[PATH_BYTES];
    struct stat status;
    snprintf(source, sizeof source, "%s/%s", from, name);
    snprintf(target, sizeof target, "%s/%s", to, name);
    if (stat(source, &status) != 0)
        return errno == ENOENT;
    if (S_ISSOCK(status.st_mode))
        return true; /* whoever opens the copy makes its own */
    return S_ISDIR(status.st_mode) ? workdir_copy(source, target) : copy_file(source, target);
}

bool workdir_copy(const char *from, const char *to)
{
    struct dirent **names;
    int count = scandir(from, &names, NULL, alphasort);
    bool ok = count >= 0 && mkdir(to, 0700) == 0;
    for (int i = 0; i < count; i++) {
        bool is_dot = strcmp(names[i]->d_name, ".") == 0 || strcmp(names[i]->d_name, "..") == 0;
        ok = ok && (is_dot || copy_entry(from, to, names[i]->d_name));
        free(names[i]);
    }
    if (count >= 0)
        free(names);
    return ok;
}

/* ---- Measuring ---- */

static bool ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), tail = strlen(ending);
    return length >= tail && strcmp(name + length - tail, ending) == 0;
}

struct workdir_files workdir_files(const char *path, const char *ending)
{
    struct workdir_files files = {0};
    DIR *dir = opendir(path);
    struct dirent *entry;
    struct stat status;
    while (dir && (entry = readdir(dir)) != NULL) {
        if (!ends_with(entry->d_name, ending) || fstatat(dirfd(dir), entry->d_name, &status, 0) != 0 ||
            !S_ISREG(status.st_mode))
            continue;
        files.count++;
        files.bytes += (uint64_t)status.st_size;
        if ((uint64_t)status.st_size > files.largest)
            files.largest = (uint64_t)status.st_size;
    }
    if (dir)
        closedir(dir);
    return files;
}
