/* Eight processes that allocate and free without a pause, and are killed at random moments.
 *
 *     storm SEED PAUSE
 *                     pauses that many microseconds after each call; reads "KILLS" per line; kills that many times, lets the survivors end, and answers with
 *                     "KILLED STARTED ENDED STUCK": how many were killed, were started, ended by themselves, and had to be
 *                     ended because they did not
 *
 * A process takes blocks of every kind until it is refused, gives some back, and so on. */
#define _GNU_SOURCE
#include <cuda.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES 8
#define BLOCKS 64
#define UNIT ((size_t)2 << 20)

struct shared {
    _Atomic int stop;
    _Atomic unsigned long long grants;
};
static struct shared *shared;
static useconds_t pause_us;

static CUdeviceptr take(unsigned int kind, size_t bytes) {
    CUdeviceptr address = 0;
    CUresult result = kind == 0   ? cuMemAllocAsync(&address, bytes, NULL)
                      : kind == 1 ? cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL)
                                  : cuMemAlloc(&address, bytes);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
        fprintf(stderr, "storm: allocation: %d\n", (int)result);
        _exit(1);
    }
    return result == CUDA_SUCCESS ? address : 0;
}

static void work(unsigned int seed) {
    CUcontext context;
    CUdeviceptr blocks[BLOCKS] = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS) {
        _exit(1);
    }
    while (!atomic_load(&shared->stop)) {
        CUdeviceptr *block = &blocks[(unsigned int)rand_r(&seed) % BLOCKS];
        if (*block == 0) {
            *block = take((unsigned int)rand_r(&seed) % 4, UNIT * (1 + (size_t)rand_r(&seed) % 4));
            atomic_fetch_add(&shared->grants, *block != 0);
        } else if (cuMemFree(*block) != CUDA_SUCCESS) {
            _exit(1);
        } else {
            *block = 0;
        }
        if (pause_us != 0) {
            usleep(pause_us);
        }
    }
    _exit(0);
}

static pid_t start(unsigned int *seed) {
    unsigned int own = (unsigned int)rand_r(seed);
    pid_t pid = fork();
    if (pid == 0) {
        work(own);
    }
    return pid;
}

/* True if it ended by itself in time. */
static int ended(pid_t pid) {
    for (int i = 0; i < 100000; i++) {
        int status;
        if (waitpid(pid, &status, WNOHANG) == pid) {
            return WIFEXITED(status) && WEXITSTATUS(status) == 0;
        }
        usleep(100);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return 0;
}

static void storm(int kills, unsigned int *seed) {
    pid_t pids[PROCESSES];
    int started = PROCESSES, by_themselves = 0;
    atomic_store(&shared->stop, 0);
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = start(seed);
    }
    for (int i = 0; i < kills; i++) {
        usleep((useconds_t)rand_r(seed) % 8000);
        int victim = rand_r(seed) % PROCESSES;
        kill(pids[victim], SIGKILL);
        waitpid(pids[victim], NULL, 0);
        pids[victim] = start(seed);
        started++;
    }
    atomic_store(&shared->stop, 1);
    for (int i = 0; i < PROCESSES; i++) {
        by_themselves += ended(pids[i]);
    }
    printf("%d %d %d %d\n", kills, started, by_themselves, PROCESSES - by_themselves);
    fflush(stdout);
}

int main(int argc, char **argv) {
    unsigned int seed = argc > 1 ? (unsigned int)strtoul(argv[1], NULL, 10) : 1;
    pause_us = argc > 2 ? (useconds_t)strtoul(argv[2], NULL, 10) : 0;
    char line[32];
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        return 1;
    }
    while (fgets(line, sizeof line, stdin) != NULL) {
        int kills = atoi(line);
        if (kills < 0) { /* how many allocations were granted so far */
            printf("%llu\n", atomic_load(&shared->grants));
            fflush(stdout);
        } else {
            storm(kills, &seed);
        }
    }
    return 0;
}
