/* Preloaded library: the k-th file operation under given folders fails or kills the process.

   `faults_arm` starts the count in the calling process. Forked or vforked children of that process
   are not counted. Calls before `faults_arm`, and calls in other folders, are unchanged. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL, FAIL_ONCE, DISK_FULL };
enum { CHANGE = 1, READ = 2 };

static char roots[4 * PATH_MAX];
static pid_t armed;
static long fail_at, seen;
static int mode, error_number, kinds, log_descriptor;

long faults_seen(void) { return __atomic_load_n(&seen, __ATOMIC_SEQ_CST); }

/* `folders`: absolute paths, one per line. The failing operation is written to `log`. */
void faults_arm(const char *folders, long at, int how, int error, int which, int log) {
    snprintf(roots, sizeof roots, "%s\n", folders);
    fail_at = at, mode = how, error_number = error, kinds = which, log_descriptor = log, seen = 0;
    armed = getpid();
}

static int is_under_root(const char *path) {
    for (const char *root = roots, *end; (end = strchr(root, '\n')); root = end + 1) {
        size_t length = end - root;
        if (length && !strncmp(path, root, length) && (path[length] == '/' || !path[length]))
            return 1;
    }
    return 0;
}

static void path_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, descriptor == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d",
             descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
}

/* Return the errno of this operation, 0 for success, or -1 to kill the process.
   `name` is NULL for an operation on the descriptor. */
static int fault(const char *operation, int kind, int descriptor, const char *name) {
    if (armed != getpid() || !(kind & kinds)) return 0;
    char path[2 * PATH_MAX];
    if (!name || name[0] != '/') {
        path_of(descriptor, path);
        if (name) strncat(strncat(path, "/", 2), name, PATH_MAX - 2);
    } else {
        snprintf(path, sizeof path, "%s", name);
    }
    if (!is_under_root(path)) return 0;
    long number = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    if (mode == COUNT || number < fail_at || (mode != DISK_FULL && number > fail_at)) return 0;
    if (number == fail_at) dprintf(log_descriptor, "%s %s\n", operation, path);
    return mode == KILL ? -1 : error_number;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define CHECK(operation, kind, descriptor, name, failed)               \
    do {                                                               \
        int found = fault(operation, kind, descriptor, name);          \
        if (found < 0) die();                                          \
        if (found > 0) return errno = found, (failed);                 \
    } while (0)

/* Deleting, renaming and closing succeed on a full disk. */
#define CHECK_KEPT(operation, descriptor, name, failed) \
    if (mode != DISK_FULL) CHECK(operation, CHANGE, descriptor, name, failed)

static int kind_of(int flags) {
    return (flags & O_ACCMODE) == O_RDONLY && !(flags & O_CREAT) ? READ : CHANGE;
}

#define OPEN(name)                                                      \
    int name(const char *path, int flags, ...) {                        \
        va_list rest;                                                   \
        va_start(rest, flags);                                          \
        int permissions = va_arg(rest, int);                            \
        va_end(rest);                                                   \
        CHECK("open", kind_of(flags), AT_FDCWD, path, -1);              \
        return NEXT(name)(path, flags, permissions);                    \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                    \
    int name(int folder, const char *path, int flags, ...) {            \
        va_list rest;                                                   \
        va_start(rest, flags);                                          \
        int permissions = va_arg(rest, int);                            \
        va_end(rest);                                                   \
        CHECK("open", kind_of(flags), folder, path, -1);                \
        return NEXT(name)(folder, path, flags, permissions);            \
    }
OPENAT(openat)
OPENAT(openat64)

FILE *fopen(const char *path, const char *how) {
    CHECK("open", strchr(how, 'r') ? READ : CHANGE, AT_FDCWD, path, NULL);
    return NEXT(fopen)(path, how);
}

FILE *fopen64(const char *path, const char *how) {
    CHECK("open", strchr(how, 'r') ? READ : CHANGE, AT_FDCWD, path, NULL);
    return NEXT(fopen64)(path, how);
}

int close(int descriptor) {
    int found = 0;
    if (armed == getpid() && mode != DISK_FULL) {
        int flags = fcntl(descriptor, F_GETFL);
        if (flags >= 0) found = fault("close", kind_of(flags), descriptor, NULL);
    }
    if (found < 0) die();
    int result = NEXT(close)(descriptor);
    return found > 0 ? (errno = found, -1) : result;
}

/* A killed write, and the first write on a full disk, writes half of the data. */
ssize_t write(int descriptor, const void *data, size_t size) {
    int found = fault("write", CHANGE, descriptor, NULL);
    int is_torn = found < 0 || (found > 0 && mode == DISK_FULL && faults_seen() == fail_at);
    if (is_torn && size > 1) {
        ssize_t written = NEXT(write)(descriptor, data, size / 2);
        if (found < 0) die();
        return written;
    }
    if (found < 0) die();
    if (found > 0) return errno = found, -1;
    return NEXT(write)(descriptor, data, size);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t at) {
    CHECK("write", CHANGE, descriptor, NULL, -1);
    return NEXT(pwrite64)(descriptor, data, size, at);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    CHECK("write", CHANGE, descriptor, NULL, -1);
    return NEXT(writev)(descriptor, parts, count);
}

size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
    CHECK("write", CHANGE, fileno(file), NULL, 0);
    return NEXT(fwrite)(data, size, count, file);
}

#define ON_FILE(operation, declared, name, ...)              \
    int name declared {                                      \
        CHECK_KEPT(operation, descriptor, NULL, -1);         \
        return NEXT(name)(descriptor, ##__VA_ARGS__);        \
    }
ON_FILE("fsync", (int descriptor), fsync)
ON_FILE("fsync", (int descriptor), fdatasync)
ON_FILE("truncate", (int descriptor, off_t size), ftruncate, size)
ON_FILE("truncate", (int descriptor, off64_t size), ftruncate64, size)
ON_FILE("chmod", (int descriptor, mode_t permissions), fchmod, permissions)
ON_FILE("flock", (int descriptor, int how), flock, how)

int mkdir(const char *path, mode_t permissions) {
    CHECK("mkdir", CHANGE, AT_FDCWD, path, -1);
    return NEXT(mkdir)(path, permissions);
}

int chmod(const char *path, mode_t permissions) {
    CHECK_KEPT("chmod", AT_FDCWD, path, -1);
    return NEXT(chmod)(path, permissions);
}

int rename(const char *from, const char *to) {
    CHECK_KEPT("rename", AT_FDCWD, to, -1);
    return NEXT(rename)(from, to);
}

int renameat(int one, const char *from, int other, const char *to) {
    CHECK_KEPT("rename", other, to, -1);
    return NEXT(renameat)(one, from, other, to);
}

int link(const char *from, const char *to) {
    CHECK_KEPT("link", AT_FDCWD, to, -1);
    return NEXT(link)(from, to);
}

int linkat(int one, const char *from, int other, const char *to, int flags) {
    CHECK_KEPT("link", other, to, -1);
    return NEXT(linkat)(one, from, other, to, flags);
}

int unlink(const char *path) {
    CHECK_KEPT("unlink", AT_FDCWD, path, -1);
    return NEXT(unlink)(path);
}

int unlinkat(int folder, const char *path, int flags) {
    CHECK_KEPT("unlink", folder, path, -1);
    return NEXT(unlinkat)(folder, path, flags);
}

int rmdir(const char *path) {
    CHECK_KEPT("rmdir", AT_FDCWD, path, -1);
    return NEXT(rmdir)(path);
}

ssize_t read(int descriptor, void *data, size_t size) {
    CHECK("read", READ, descriptor, NULL, -1);
    return NEXT(read)(descriptor, data, size);
}

DIR *opendir(const char *path) {
    CHECK("list", READ, AT_FDCWD, path, NULL);
    return NEXT(opendir)(path);
}

#define STAT(name, type)                                     \
    int name(const char *path, struct type *found) {         \
        CHECK("stat", READ, AT_FDCWD, path, -1);             \
        return NEXT(name)(path, found);                      \
    }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

int fstatat64(int folder, const char *path, struct stat64 *found, int flags) {
    CHECK("stat", READ, folder, path, -1);
    return NEXT(fstatat64)(folder, path, found, flags);
}
