/* The clock of a process in a time namespace of its own. */
#define _GNU_SOURCE
#include "session.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How far CLOCK_MONOTONIC is ahead in this process's time namespace. Offsets that it set for its children only are not its
 * own: the two namespaces differ until there is one. */
uint64_t session_clock_offset(void) {
    char content[256] = "", own[64] = "", childrens[64] = "";
    long long seconds = 0, nanoseconds = 0;
    if (readlink("/proc/self/ns/time", own, sizeof own - 1) == -1 ||
        readlink("/proc/self/ns/time_for_children", childrens, sizeof childrens - 1) == -1 || strcmp(own, childrens) != 0) {
        return 0;
    }
    int file = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
    if (file == -1) {
        return 0; /* Linux before 5.6 */
    }
    ssize_t size = read(file, content, sizeof content - 1);
    close(file);
    const char *line = size > 0 ? strstr(content, "monotonic") : NULL;
    if (line == NULL || sscanf(line, "monotonic %lld %lld", &seconds, &nanoseconds) != 2) {
        return 0;
    }
    return (uint64_t)seconds * 1000000000u + (uint64_t)nanoseconds;
}
