/* Attaches processes to sessions and keeps them: what the agent costs while no process does anything.
 *
 * attach SOCKET TOGETHER: for each line "session token" of the input a process is started, TOGETHER of them at a time. How
 * long each attach took, from socket() until the pages are mapped, is printed in nanoseconds; "ready" follows the last.
 * All of them live until this program is killed. */
#define _GNU_SOURCE
#include "../../native/include/page.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int attach(const char *path, const char *session, const char *token) {
    struct gpuslice_attach request = {.magic = GPUSLICE_ATTACH_MAGIC, .version = GPUSLICE_PAGE_VERSION};
    memcpy(request.session, session, strnlen(session, sizeof request.session - 1));
    memcpy(request.token, token, strnlen(token, sizeof request.token - 1));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strnlen(path, sizeof address.sun_path - 1));
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(connection, (struct sockaddr *)&address, sizeof address) == -1 ||
        send(connection, &request, sizeof request, 0) != sizeof request) {
        return -1;
    }
    struct gpuslice_attached answer;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec part = {&answer, sizeof answer};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space,
                             .msg_controllen = sizeof control.space};
    if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != sizeof answer || answer.status != GPUSLICE_ATTACH_OK) {
        return -1;
    }
    int descriptors[2];
    memcpy(descriptors, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptors);
    void *page = mmap(NULL, GPUSLICE_CONTROL_BYTES, PROT_READ, MAP_SHARED, descriptors[0], 0);
    void *cells = mmap(NULL, gpuslice_cells_bytes(answer.gpu_count), PROT_READ | PROT_WRITE, MAP_SHARED, descriptors[1], 0);
    close(descriptors[0]); /* that of the cells stays open, for an agent that is started again */
    return page == MAP_FAILED || cells == MAP_FAILED ? -1 : 0;
}

/* Prints what `count` children say. */
static int collect(int answers, int count) {
    for (int64_t taken; count > 0; count--) {
        if (read(answers, &taken, sizeof taken) != sizeof taken || taken < 0) {
            return -1;
        }
        printf("%lld\n", (long long)taken);
    }
    return 0;
}

/* A process of its own, started as any program is. */
static int one(char **argv) {
    int answers = atoi(argv[5]);
    uint64_t began = now_ns();
    int64_t taken = attach(argv[2], argv[3], argv[4]) == 0 ? (int64_t)(now_ns() - began) : -1;
    if (write(answers, &taken, sizeof taken) != sizeof taken || taken < 0) {
        return 1;
    }
    for (;;) {
        pause();
    }
}

int main(int argc, char **argv) {
    char session[GPUSLICE_SESSION_BYTES], token[GPUSLICE_TOKEN_BYTES];
    if (argc == 6) {
        return one(argv);
    }
    int together = argc == 3 ? atoi(argv[2]) : 0, begun = 0, answers[2];
    if (together < 1 || pipe(answers) == -1) {
        return 2;
    }
    pid_t parent = getpid();
    while (scanf("%63s %127s", session, token) == 2) {
        pid_t child = fork();
        if (child == 0) {
            char number[16];
            snprintf(number, sizeof number, "%d", answers[1]);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() == parent) {
                execl("/proc/self/exe", "attach", "one", argv[1], session, token, number, (char *)NULL);
            }
            _exit(1);
        }
        if (child == -1) {
            return 1;
        }
        if (++begun == together) {
            if (collect(answers[0], begun) == -1) {
                return 1;
            }
            begun = 0;
        }
    }
    if (collect(answers[0], begun) == -1) {
        return 1;
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        pause();
    }
}
