// A disk that takes its time, for LD_PRELOAD: fsync, fdatasync and rename wait while the file $SLOW_DISK_GATE exists.
// Each call that waits leaves a file $SLOW_DISK_GATE.waiting, so that a test knows when one does.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void wait_for_disk(void)
{
    const char *gate = getenv("SLOW_DISK_GATE");
    char waiting[4096];
    if (gate == NULL || access(gate, F_OK) != 0) {
        return;
    }
    snprintf(waiting, sizeof waiting, "%s.waiting", gate);
    int marker = open(waiting, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (marker >= 0) {
        close(marker);
    }
    while (access(gate, F_OK) == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
}

int fsync(int descriptor)
{
    static int (*real)(int);
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    }
    wait_for_disk();
    return real(descriptor);
}

int fdatasync(int descriptor)
{
    static int (*real)(int);
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "fdatasync");
    }
    wait_for_disk();
    return real(descriptor);
}

int rename(const char *old, const char *new)
{
    static int (*real)(const char *, const char *);
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "rename");
    }
    wait_for_disk();
    return real(old, new);
}
