/* A process on a simulated machine without CUDA: has a context on one memory domain, holds some of its memory, and
 * keeps it busy if asked to. Says "ready" and lives until its input ends.
 *
 * tenant DOMAIN BYTES BUSY */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine.h"

int main(int argc, char **argv) {
    struct sim_process self;
    if (argc != 4 || sim_open(&self, false) != SIM_OPEN_OK) {
        return 1;
    }
    uint32_t domain = (uint32_t)strtoul(argv[1], NULL, 10);
    sim_context_opened(&self, domain);
    if (!sim_memory_claim(&self, domain, strtoull(argv[2], NULL, 10) / SIM_UNIT)) {
        return 2;
    }
    int busy = atoi(argv[3]);
    if (busy) { /* some history, so that a test that asks after "ready" sees a busy process */
        for (int n = 0; n < 60; n++) {
            sim_engine_wait(&self, domain, sim_engine_submit(&self, domain, 10000000));
        }
    }
    puts("ready");
    fflush(stdout);
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&input, 1, busy ? 0 : -1) == 0) {
        sim_engine_wait(&self, domain, sim_engine_submit(&self, domain, 10000000));
    }
    return 0;
}
