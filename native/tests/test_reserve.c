/* The reserve protocol itself, as the interposer compiles it: every order in which small groups of processes can take
 * its steps (up to a bound), a death at every one of them, real kills at the named steps, and threads.
 *
 *     test_reserve orders | kills | threads */
#define _GNU_SOURCE
#include "../include/page.h"

#include <sched.h>

/* Every access to a cell's bytes is a step at which another process may come first, and every pause lets one by. */
static void step(void);
static void named_step(const char *name);
#undef atomic_load
#undef atomic_fetch_add
#undef atomic_fetch_sub
#define atomic_load(at) ((void)(sizeof *(at) == 8 ? step(), 0 : 0), __atomic_load_n(at, __ATOMIC_SEQ_CST)) /* a cell's */
#define atomic_fetch_add(at, value) (step(), __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST))
#define atomic_fetch_sub(at, value) (step(), __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST))
#define __builtin_ia32_pause() step()
#define sched_yield() step()
#define GPUSLICE_STEP(name) named_step(name)
#ifndef RESERVE_HEADER
#define RESERVE_HEADER "../interposer/reserve.h" /* a test hands in a broken one, which must be found out */
#endif
#include RESERVE_HEADER
#undef __builtin_ia32_pause
#undef sched_yield
#undef atomic_load
#undef atomic_fetch_add
#undef atomic_fetch_sub
#define atomic_load(at) atomic_load_explicit(at, memory_order_seq_cst)
#define atomic_fetch_add(at, value) atomic_fetch_add_explicit(at, value, memory_order_seq_cst)
#define atomic_fetch_sub(at, value) atomic_fetch_sub_explicit(at, value, memory_order_seq_cst)

#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define MOST_PROCESSES 3

static struct gpuslice_control control;
static struct gpuslice_cell *cells; /* shared with forked children */

static void open_books(uint32_t processes, uint64_t limit) {
    memset(cells, 0, gpuslice_cells_bytes(1));
    control = (struct gpuslice_control){.gpu_count = 1, .slots_high = processes};
    atomic_store(&control.gpus[0].limit_bytes, limit);
}

static struct page page_of(uint32_t slot) {
    return (struct page){.control = &control, .cells = cells, .slot = slot, .gpu_count = 1};
}

static uint64_t booked(uint32_t slot) {
    return atomic_load(&cells[slot].charged) & GPUSLICE_BYTES_MASK;
}

/* As the agent does when a process has ended. */
static void clear(uint32_t slot) {
    memset(&cells[slot], 0, sizeof cells[slot]);
}

/* ---- orders: processes are coroutines, and a schedule says who takes the next step ---- */

enum state { READY, ENDED, KILLED };

struct coroutine {
    ucontext_t context;
    char stack[64 * 1024];
    enum state state;
    const struct request *request;
    uint64_t granted; /* what the driver has handed out to it */
    int refusals;
};

struct request {
    uint64_t first, release, second; /* reserve, give some of it back, reserve again; zero: not done */
};

struct scenario {
    const char *name;
    uint32_t processes;
    uint64_t limit;
    struct request requests[MOST_PROCESSES];
    int most_refusals; /* of all together, when nobody is killed */
};

static struct coroutine coroutines[MOST_PROCESSES];
static ucontext_t scheduler;
static int running = -1;
static int driver_overbooked;

static void step(void) {
    if (running >= 0) {
        swapcontext(&coroutines[running].context, &scheduler);
    }
}

static void take(struct coroutine *self, const struct page *page, uint64_t bytes) {
    if (bytes == 0) {
        return;
    }
    if (reserve(page, 0, bytes)) {
        self->granted += bytes; /* the driver is asked now: the bytes are in use from here on */
    } else {
        self->refusals++;
    }
}

static void body(int index) {
    struct coroutine *self = &coroutines[index];
    struct page page = page_of((uint32_t)index);
    take(self, &page, self->request->first);
    if (self->request->release != 0 && self->granted >= self->request->release) {
        self->granted -= self->request->release; /* the driver first, then the books */
        reserve_release(&page, 0, self->request->release);
    }
    take(self, &page, self->request->second);
    self->state = ENDED;
}

static void begin(const struct scenario *scenario) {
    open_books(scenario->processes, scenario->limit);
    for (uint32_t i = 0; i < scenario->processes; i++) {
        struct coroutine *self = &coroutines[i];
        self->state = READY;
        self->request = &scenario->requests[i];
        self->granted = 0;
        self->refusals = 0;
        getcontext(&self->context);
        self->context.uc_stack.ss_sp = self->stack;
        self->context.uc_stack.ss_size = sizeof self->stack;
        self->context.uc_link = &scheduler;
        makecontext(&self->context, (void (*)(void))body, 1, (int)i);
    }
}

static void resume(uint32_t index) {
    running = (int)index;
    swapcontext(&scheduler, &coroutines[index].context);
    running = -1;
}

static uint64_t in_use(const struct scenario *scenario) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < scenario->processes; i++) {
        bytes += coroutines[i].state != KILLED ? coroutines[i].granted : 0;
    }
    return bytes;
}

static bool anybody_ready(const struct scenario *scenario) {
    for (uint32_t i = 0; i < scenario->processes; i++) {
        if (coroutines[i].state == READY) {
            return true;
        }
    }
    return false;
}

/* A schedule is a list of choices. Below `processes`: who takes a step. At and above it: who is killed, and cleared at
 * once or, after the bound, never chosen again. Choices that make no sense in a state are skipped by the search. */
#define MOST_CHOICES 64
struct schedule {
    uint8_t choices[MOST_CHOICES];
    uint32_t made; /* in this run */
};

static bool possible(const struct scenario *scenario, uint32_t choice, uint32_t kills_left) {
    uint32_t who = choice % scenario->processes;
    return coroutines[who].state == READY && (choice < scenario->processes || kills_left > 0);
}

/* Runs one schedule: the first `depth` choices as given, then everybody in turn until all have ended. */
static void run_schedule(const struct scenario *scenario, struct schedule *schedule, uint32_t depth, uint32_t kills) {
    uint32_t turn = 0, killed = 0;
    begin(scenario);
    schedule->made = 0;
    while (anybody_ready(scenario)) {
        uint32_t choice;
        if (schedule->made < depth) {
            uint8_t *at = &schedule->choices[schedule->made];
            while (*at < 2 * scenario->processes && !possible(scenario, *at, kills - killed)) {
                ++*at;
            }
            if (*at >= 2 * scenario->processes) {
                return; /* every choice here was tried: the search goes back one */
            }
            choice = *at;
            schedule->made++;
        } else {
            choice = turn++ % scenario->processes;
            if (coroutines[choice].state != READY) {
                continue;
            }
        }
        uint32_t who = choice % scenario->processes;
        if (choice >= scenario->processes) {
            coroutines[who].state = KILLED; /* the driver frees its memory before the agent hears of its end */
            clear(who);
            killed++;
        } else {
            resume(who);
        }
        driver_overbooked += in_use(scenario) > scenario->limit;
    }
    int refusals = 0;
    uint64_t left = 0;
    for (uint32_t i = 0; i < scenario->processes; i++) {
        left += booked(i);
        refusals += coroutines[i].refusals;
        CHECK(coroutines[i].state == KILLED ? booked(i) == 0 : booked(i) == coroutines[i].granted);
        uint64_t attempts = atomic_load(&cells[i].charged) >> 48, withdrawn = atomic_load(&cells[i].withdrawn);
        CHECK(withdrawn <= attempts);
    }
    CHECK(left == in_use(scenario));
    CHECK(killed > 0 || refusals <= scenario->most_refusals);
}

/* Every schedule up to that depth, by counting through the choices. */
static void run_orders(const struct scenario *scenario, uint32_t depth, uint32_t kills) {
    struct schedule schedule = {0};
    uint64_t orders = 0;
    driver_overbooked = 0;
    for (;;) {
        run_schedule(scenario, &schedule, depth, kills);
        orders++;
        uint32_t at = schedule.made;
        memset(schedule.choices + at, 0, sizeof schedule.choices - at);
        if (at == 0 || atomic_load(&check_failed) > 20) {
            break;
        }
        schedule.choices[at - 1]++;
    }
    CHECK(driver_overbooked == 0);
    printf("%s, %u kills: %llu orders of the first %u steps\n", scenario->name, kills, (unsigned long long)orders, depth);
}

static void test_orders(void) {
    static const struct scenario scenarios[] = {
        {"two that fit alone but not together", 2, 10, {{6, 0, 0}, {6, 0, 0}}, 1},
        {"two that fit together", 2, 10, {{4, 0, 0}, {6, 0, 0}}, 0},
        {"one too large beside one that fits", 2, 10, {{11, 0, 0}, {10, 0, 0}}, 1},
        {"one gives back what the other needs", 2, 10, {{6, 6, 0}, {6, 0, 0}}, 1},
        {"two that take, give back and take again", 2, 10, {{5, 5, 5}, {5, 5, 5}}, 0},
    };
    static const struct scenario three = {"three of which two fit", 3, 10, {{5, 0, 0}, {5, 0, 0}, {5, 0, 0}}, 1};
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        run_orders(&scenarios[i], 14, 0);
        run_orders(&scenarios[i], 10, 1);
    }
    run_orders(&three, 9, 0);
    run_orders(&three, 7, 1);
}

/* ---- kills: a real process, really killed where it stands ---- */

struct handshake { /* shared */
    char stop_at[16], then_at[16]; /* the child stops at the first, goes on when told, stops at the second */
    _Atomic int stopped, may_go_on;
};
static struct handshake *handshake;
static bool is_child;

static void named_step(const char *name) {
    if (!is_child) {
        return;
    }
    bool first = atomic_load(&handshake->stopped) == 0 && strcmp(name, handshake->stop_at) == 0;
    bool second = atomic_load(&handshake->stopped) == 1 && strcmp(name, handshake->then_at) == 0;
    if (first || second) {
        int stop = first ? 1 : 2;
        atomic_store(&handshake->stopped, stop);
        while (atomic_load(&handshake->may_go_on) < stop) {
            usleep(100);
        }
    }
}

static void child(void) {
    struct page page = page_of(1);
    is_child = true;
    if (reserve(&page, 0, 60)) {
        reserve_release(&page, 0, 60);
    }
    _exit(0);
}

static void wait_for_stop(int stop) {
    for (int i = 0; i < 100000 && atomic_load(&handshake->stopped) < stop; i++) {
        usleep(100);
    }
    CHECK(atomic_load(&handshake->stopped) == stop);
}

/* The child is stopped at the step and killed there. `in_cell`: what it leaves behind. */
static void kill_at(const char *name, uint64_t in_cell, bool contended) {
    struct page own = page_of(0);
    memset(handshake, 0, sizeof *handshake);
    snprintf(handshake->stop_at, sizeof handshake->stop_at, "%s", contended ? "room" : name);
    snprintf(handshake->then_at, sizeof handshake->then_at, "%s", name);
    open_books(2, 100);
    pid_t pid = fork();
    if (pid == 0) {
        child();
    }
    wait_for_stop(1);
    if (contended) { /* the room that it saw is taken away: it has to withdraw */
        CHECK(reserve(&own, 0, 50));
        atomic_store(&handshake->may_go_on, 1);
        wait_for_stop(2);
    }
    kill(pid, SIGKILL);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK(booked(1) == in_cell);
    /* Until the agent has cleared it, its bytes are in nobody's way but those that they would have taken. */
    uint64_t mine = contended ? 50 : 0;
    CHECK(!reserve(&own, 0, 100 - mine - in_cell + 1));
    CHECK(booked(0) == mine);
    clear(1);
    CHECK(reserve(&own, 0, 100 - mine));
    CHECK(booked(0) == 100 && page_sum(&own, 0) == 100);
    reserve_release(&own, 0, 100);
    CHECK(page_sum(&own, 0) == 0);
    CHECK(atomic_load(&cells[0].withdrawn) == 0);
}

static void test_kills(void) {
    kill_at("room", 0, false);
    kill_at("charged", 60, false);
    kill_at("summed", 60, false);
    kill_at("release", 60, false);
    kill_at("released", 0, false);
    kill_at("charged", 60, true);
    kill_at("summed", 60, true);
    kill_at("withdrawn", 0, true);
}

/* ---- threads: as many as there may be, all the time at the limit ---- */

#define THREADS 4
#define ROUNDS 100000

static _Atomic int64_t handed_out;
static _Atomic uint64_t over, grants[THREADS], thread_refusals;

static void *allocate_and_free(void *argument) {
    uint32_t index = (uint32_t)(uintptr_t)argument;
    struct page page = page_of(index % 2); /* two processes with two threads each */
    unsigned int seed = index + 1;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t bytes = 1 + (uint64_t)rand_r(&seed) % 60;
        if (!reserve(&page, 0, bytes)) {
            reserve_count_denied(&page, 0);
            atomic_fetch_add(&thread_refusals, 1);
            continue;
        }
        atomic_fetch_add(&grants[index % 2], 1);
        if (atomic_fetch_add(&handed_out, (int64_t)bytes) + (int64_t)bytes > 100) {
            atomic_fetch_add(&over, 1);
        }
        atomic_fetch_sub(&handed_out, (int64_t)bytes);
        reserve_release(&page, 0, bytes);
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[THREADS];
    struct page page = page_of(0);
    open_books(2, 100);
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, allocate_and_free, (void *)i) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(atomic_load(&over) == 0);
    CHECK(page_sum(&page, 0) == 0);
    uint64_t denied = 0;
    for (int i = 0; i < 2; i++) {
        const struct gpuslice_cell *cell = &cells[i];
        uint64_t attempts = (atomic_load(&cell->laps) << 16) + (atomic_load(&cell->charged) >> 48);
        CHECK(attempts - atomic_load(&cell->withdrawn) == atomic_load(&grants[i]));
        CHECK(atomic_load(&cell->peak) <= 100 && atomic_load(&cell->peak) > 0);
        denied += atomic_load(&cell->denied);
    }
    CHECK(denied == atomic_load(&thread_refusals));
}

/* ---- numbers at their edges ---- */

static void test_edges(void) {
    struct page page = page_of(0);
    open_books(1, GPUSLICE_BYTES_MASK);
    CHECK(!reserve(&page, 0, UINT64_MAX));
    CHECK(!reserve(&page, 0, GPUSLICE_BYTES_MASK + 1));
    CHECK(reserve(&page, 0, GPUSLICE_BYTES_MASK));
    CHECK(!reserve(&page, 0, 1));
    CHECK(reserve(&page, 0, 0));
    reserve_release(&page, 0, GPUSLICE_BYTES_MASK);
    CHECK(booked(0) == 0);
    for (uint64_t i = 0; i < 3 * 65536; i++) { /* the attempts go round, the bytes do not notice */
        if (!reserve(&page, 0, 7)) {
            CHECK(!"refused");
        }
        reserve_release(&page, 0, 7);
    }
    CHECK(booked(0) == 0);
    CHECK((atomic_load(&cells[0].laps) << 16) + (atomic_load(&cells[0].charged) >> 48) == 3 * 65536 + 2);
    atomic_store(&control.gpus[0].limit_bytes, 5); /* lowered below what is held: nothing new, and nothing wraps */
    CHECK(reserve(&page, 0, 5));
    atomic_store(&control.gpus[0].limit_bytes, 1);
    CHECK(!reserve(&page, 0, 1) && booked(0) == 5);
    atomic_store(&control.gpus[0].limit_bytes, 6);
    CHECK(reserve(&page, 0, 1) && booked(0) == 6);
    atomic_store(&cells[0].overhead, 3); /* what the agent found counts too */
    atomic_store(&control.gpus[0].limit_bytes, 10);
    CHECK(!reserve(&page, 0, 2) && reserve(&page, 0, 1));
}

int main(int argc, char **argv) {
    const char *which = argc == 2 ? argv[1] : "";
    cells = mmap(NULL, gpuslice_cells_bytes(1), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    handshake = mmap(NULL, sizeof *handshake, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (cells == MAP_FAILED || handshake == MAP_FAILED) {
        return 2;
    }
    if (strcmp(which, "orders") == 0) {
        test_orders();
    } else if (strcmp(which, "kills") == 0) {
        test_kills();
    } else if (strcmp(which, "threads") == 0) {
        test_edges();
        test_threads();
    } else {
        return 2;
    }
    return check_summary();
}
