/* The reserve protocol itself, as the interposer compiles it: every order in which small groups of processes can take
 * its steps (up to a bound), a death at every one of them, an agent that lowers the limit meanwhile, real kills at the
 * named steps, and threads. Sizes are in units.
 *
 *     test_reserve orders | kills | threads */
#define _GNU_SOURCE
#include "reserve_steps.h"

#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define MOST_ACTORS 3 /* processes, and the agent where it lowers the limit */

static struct gpuslice_control control;
static struct gpuslice_cell *cells; /* shared with forked children */

static void open_books(uint32_t processes, uint64_t limit) {
    memset(cells, 0, gpuslice_cells_bytes(1));
    control = (struct gpuslice_control){.gpu_count = 1, .slots_high = processes};
    atomic_store(&control.gpus[0].limit_bytes, limit * GPUSLICE_UNIT);
}

static struct page page_of(uint32_t slot) {
    return (struct page){.control = &control, .cells = cells, .slot = slot, .gpu_count = 1};
}

static bool take_units(const struct page *page, uint64_t units) {
    return reserve(page, 0, 0, units * GPUSLICE_UNIT);
}

static void give_units(const struct page *page, uint64_t units) {
    reserve_release(page, 0, 0, units * GPUSLICE_UNIT);
}

static struct gpuslice_cell *cell_of(uint32_t slot) { /* the first lane's */
    return &cells[slot * GPUSLICE_LANES];
}

static uint64_t charged_to(uint32_t slot) {
    return gpuslice_units(atomic_load(&cell_of(slot)->charged));
}

static uint64_t spare_of(uint32_t slot) {
    return gpuslice_spare(atomic_load(&cell_of(slot)->charged));
}

static uint64_t booked(uint32_t slot) {
    return gpuslice_held_units(atomic_load(&cell_of(slot)->charged));
}

static uint64_t all_charged(void) {
    struct page page = page_of(0);
    return page_sum(&page, 0).charged / GPUSLICE_UNIT;
}

static uint64_t all_used(void) {
    struct page page = page_of(0);
    return page_used(&page, 0) / GPUSLICE_UNIT;
}

/* As the agent does when a process has ended. */
static void clear(uint32_t slot) {
    memset(cell_of(slot), 0, GPUSLICE_LANES * sizeof cells[0]);
}

/* ---- orders: processes are coroutines, and a schedule says who takes the next step ---- */

enum state { READY, ENDED, KILLED };

struct coroutine {
    ucontext_t context;
    char stack[64 * 1024];
    enum state state;
    uint64_t held; /* what the driver has handed out to it */
    uint64_t grants;
    int refusals;
};

struct request {
    uint64_t first, release, second; /* reserve, give some of it back, reserve again; zero: not done */
};

struct scenario {
    const char *name;
    uint32_t processes;
    uint64_t limit;
    struct request requests[MOST_ACTORS];
    int most_refusals;           /* of all together, when none is killed */
    uint64_t spare[MOST_ACTORS]; /* what each has kept from before */
    uint64_t lowered;            /* the limit that the agent sets meanwhile; zero: it does not */
};

static const struct scenario *playing;
static struct coroutine coroutines[MOST_ACTORS];
static ucontext_t scheduler;
static int running = -1;
static int overbooked;
static bool lowering_is_known; /* to every process that looks from now on */

static void step(void) {
    if (running >= 0) {
        swapcontext(&coroutines[running].context, &scheduler);
    }
}

static bool is_step(const volatile void *at, size_t bytes) {
    bool agents = at == &control.gpus[0].limit_bytes || at == &control.gpus[0].epoch;
    return agents ? playing != NULL && playing->lowered != 0 : bytes == sizeof(uint64_t);
}

static uint32_t actors(void) {
    return playing->processes + (playing->lowered != 0);
}

static uint64_t in_use(void) {
    uint64_t units = 0;
    for (uint32_t i = 0; i < playing->processes; i++) {
        units += coroutines[i].state != KILLED ? coroutines[i].held : 0;
    }
    return units;
}

static void take(struct coroutine *self, const struct page *page, uint64_t units) {
    if (units == 0) {
        return;
    }
    bool lower = lowering_is_known;
    if (take_units(page, units)) {
        self->held += units; /* the driver is asked now: the units are in use from here on */
        self->grants++;
        overbooked += in_use() > (lower ? playing->lowered : playing->limit);
    } else {
        self->refusals++;
    }
}

static void act_process(int index) {
    struct coroutine *self = &coroutines[index];
    const struct request *request = &playing->requests[index];
    struct page page = page_of((uint32_t)index);
    take(self, &page, request->first);
    if (request->release != 0 && self->held >= request->release) {
        self->held -= request->release; /* the driver first, then the books */
        give_units(&page, request->release);
    }
    take(self, &page, request->second);
    self->state = ENDED;
}

static void act_agent(int index) {
    step();
    atomic_store(&control.gpus[0].limit_bytes, playing->lowered * GPUSLICE_UNIT);
    step();
    atomic_fetch_add(&control.gpus[0].epoch, 1);
    lowering_is_known = true;
    coroutines[index].state = ENDED;
}

static void begin(void) {
    open_books(playing->processes, playing->limit);
    lowering_is_known = false;
    for (uint32_t i = 0; i < actors(); i++) {
        struct coroutine *self = &coroutines[i];
        self->state = READY;
        self->held = self->grants = 0;
        self->refusals = 0;
        atomic_store(&cell_of(i)->charged, playing->spare[i] << GPUSLICE_SPARE_SHIFT | playing->spare[i]);
        getcontext(&self->context);
        self->context.uc_stack.ss_sp = self->stack;
        self->context.uc_stack.ss_size = sizeof self->stack;
        self->context.uc_link = &scheduler;
        makecontext(&self->context, (void (*)(void))(i < playing->processes ? act_process : act_agent), 1, (int)i);
    }
}

static void resume(uint32_t index) {
    running = (int)index;
    swapcontext(&scheduler, &coroutines[index].context);
    running = -1;
}

static bool any_ready(void) {
    for (uint32_t i = 0; i < actors(); i++) {
        if (coroutines[i].state == READY) {
            return true;
        }
    }
    return false;
}

/* A search tries every list of `depth` choices. A choice is who takes how many steps, one to `longest`, or, above those,
 * who is killed and cleared at once. Then all go on by turns, or, where choices are long, one after the other. */
struct search {
    uint32_t depth, longest, kills;
};

#define MOST_CHOICES 64
struct schedule {
    uint8_t choices[MOST_CHOICES];
    uint32_t made; /* in this run */
};

static bool possible(const struct search *search, uint32_t choice, uint32_t killed) {
    uint32_t steps = actors() * search->longest;
    uint32_t who = choice < steps ? choice / search->longest : choice - steps;
    return coroutines[who].state == READY && (choice < steps || killed < search->kills);
}

static void check_books(uint32_t killed) {
    int refusals = 0;
    for (uint32_t i = 0; i < playing->processes; i++) {
        refusals += coroutines[i].refusals;
        CHECK(coroutines[i].state == KILLED ? charged_to(i) == 0 : booked(i) == coroutines[i].held);
        CHECK(spare_of(i) <= charged_to(i));
        CHECK(coroutines[i].state == KILLED || atomic_load(&cell_of(i)->granted) == coroutines[i].grants);
    }
    CHECK(all_used() == in_use());
    CHECK(all_charged() <= playing->limit);
    CHECK(killed > 0 || refusals <= playing->most_refusals);
}

static void run_schedule(const struct search *search, struct schedule *schedule) {
    uint32_t turn = 0, killed = 0, steps = actors() * search->longest;
    begin();
    schedule->made = 0;
    while (schedule->made < search->depth && any_ready()) {
        uint8_t *at = &schedule->choices[schedule->made];
        while (*at < steps + playing->processes && !possible(search, *at, killed)) {
            ++*at;
        }
        if (*at >= steps + playing->processes) {
            return; /* every choice here was tried: the search goes back one */
        }
        schedule->made++;
        if (*at >= steps) {
            coroutines[*at - steps].state = KILLED; /* the driver frees its memory before the agent hears of its end */
            clear(*at - steps);
            killed++;
            continue;
        }
        uint32_t who = *at / search->longest;
        for (uint32_t left = *at % search->longest + 1; left > 0 && coroutines[who].state == READY; left--) {
            resume(who);
        }
    }
    while (any_ready()) {
        uint32_t who = turn % actors();
        if (coroutines[who].state == READY) {
            resume(who);
        }
        turn += search->longest == 1 || coroutines[who].state != READY;
    }
    check_books(killed);
}

/* By counting through the choices. */
static void run_search(const struct scenario *scenario, struct search search) {
    struct schedule schedule = {0};
    uint64_t orders = 0;
    playing = scenario;
    overbooked = 0;
    for (;;) {
        run_schedule(&search, &schedule);
        orders++;
        uint32_t at = schedule.made;
        memset(schedule.choices + at, 0, sizeof schedule.choices - at);
        if (at == 0 || atomic_load(&check_failed) > 20) {
            break;
        }
        schedule.choices[at - 1]++;
    }
    CHECK(overbooked == 0);
    printf("%s, %u kills: %llu orders\n", scenario->name, search.kills, (unsigned long long)orders);
    playing = NULL;
}

static void test_orders(void) {
    static const struct scenario scenarios[] = {
        {"two that fit alone but not together", 2, 10, {{6, 0, 0}, {6, 0, 0}}, 1, {0}, 0},
        {"two that fit together", 2, 10, {{4, 0, 0}, {6, 0, 0}}, 0, {0}, 0},
        {"one too large beside one that fits", 2, 10, {{11, 0, 0}, {10, 0, 0}}, 1, {0}, 0},
        {"one gives back what the other needs", 2, 10, {{6, 6, 0}, {6, 0, 0}}, 1, {0}, 0},
        {"two that take, give back and take again", 2, 10, {{5, 5, 5}, {5, 5, 5}}, 0, {0}, 0},
        {"one needs what the other keeps and uses in part", 2, 10, {{4, 4, 4}, {6, 0, 0}}, 0, {10, 0}, 0},
        {"each needs some of what the other keeps", 2, 10, {{7, 0, 0}, {3, 0, 0}}, 0, {3, 7}, 0},
        {"each needs all that the other keeps", 2, 10, {{8, 0, 0}, {8, 0, 0}}, 1, {5, 5}, 0},
    };
    static const struct scenario three[] = {
        {"three of which two fit", 3, 10, {{5, 0, 0}, {5, 0, 0}, {5, 0, 0}}, 1, {0}, 0},
        {"two that need what the third keeps", 3, 10, {{0, 0, 0}, {5, 0, 0}, {5, 0, 0}}, 0, {10, 0, 0}, 0},
    };
    static const struct scenario lowered[] = {
        {"the limit is lowered", 2, 10, {{6, 0, 0}, {3, 3, 3}}, 4, {0}, 6},
        {"the limit is lowered below what is kept", 2, 10, {{4, 4, 4}, {4, 4, 4}}, 4, {5, 5}, 5},
    };
    looks = 4; /* here it is right to refuse, and a long look finds nothing new */
    for (size_t i = 0; i < sizeof lowered / sizeof lowered[0]; i++) {
        run_search(&lowered[i], (struct search){.depth = 3, .longest = 18});
        run_search(&lowered[i], (struct search){.depth = 7, .longest = 1});
    }
    looks = 64;
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        run_search(&scenarios[i], (struct search){.depth = 13, .longest = 1});
        run_search(&scenarios[i], (struct search){.depth = 10, .longest = 1, .kills = 1});
        run_search(&scenarios[i], (struct search){.depth = 2, .longest = 24, .kills = 1});
    }
    for (size_t i = 0; i < sizeof three / sizeof three[0]; i++) {
        run_search(&three[i], (struct search){.depth = 8, .longest = 1});
        run_search(&three[i], (struct search){.depth = 7, .longest = 1, .kills = 1});
    }
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
    if (take_units(&page, 60)) {
        give_units(&page, 60);
    }
    _exit(0);
}

static void wait_for_stop(int stop) {
    for (int i = 0; i < 100000 && atomic_load(&handshake->stopped) < stop; i++) {
        usleep(100);
    }
    CHECK(atomic_load(&handshake->stopped) == stop);
}

static void kill_child(pid_t pid) {
    int status;
    kill(pid, SIGKILL);
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* The child is stopped at the step and killed there. `held`: what it leaves behind, besides spare. */
static void kill_at(const char *name, uint64_t held, bool contended) {
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
        CHECK(take_units(&own, 50));
        atomic_store(&handshake->may_go_on, 1);
        wait_for_stop(2);
    }
    kill_child(pid);
    CHECK(booked(1) == held);
    /* Until the agent has cleared it, its units disturb only the processes that would have taken them. */
    uint64_t mine = contended ? 50 : 0;
    CHECK(!take_units(&own, 100 - mine - held + 1));
    CHECK(booked(0) == mine);
    clear(1);
    CHECK(take_units(&own, 100 - mine));
    CHECK(booked(0) == 100 && all_charged() == 100);
    give_units(&own, 100);
    CHECK(all_used() == 0);
}

/* The child is killed when it has taken the spare of another, and not yet anything for itself. */
static void kill_after_reclaiming(void) {
    struct page own = page_of(0);
    memset(handshake, 0, sizeof *handshake);
    snprintf(handshake->stop_at, sizeof handshake->stop_at, "reclaimed");
    open_books(2, 100);
    CHECK(take_units(&own, 90));
    give_units(&own, 70);
    CHECK(booked(0) == 20 && spare_of(0) == 70);
    pid_t pid = fork();
    if (pid == 0) {
        child();
    }
    wait_for_stop(1); /* its own cell comes first, and had nothing */
    kill_child(pid);
    CHECK(booked(0) == 20 && spare_of(0) == 70 && booked(1) == 0);
    atomic_store(&handshake->stopped, 0);
    atomic_store(&handshake->may_go_on, 1); /* past the first cell, and stopped behind the second */
    snprintf(handshake->then_at, sizeof handshake->then_at, "reclaimed");
    pid = fork();
    if (pid == 0) {
        child();
    }
    wait_for_stop(2);
    kill_child(pid);
    CHECK(booked(0) == 20 && spare_of(0) == 0 && charged_to(1) == 0);
    CHECK(take_units(&own, 80) && all_charged() == 100);
}

static void test_kills(void) {
    kill_at("room", 0, false);
    kill_at("charged", 60, false);
    kill_at("summed", 60, false);
    kill_at("granted", 60, false);
    kill_at("release", 60, false);
    kill_at("released", 0, false);
    kill_at("charged", 60, true);
    kill_at("summed", 60, true);
    kill_at("withdrawn", 0, true);
    kill_after_reclaiming();
}

/* ---- threads: as many as there may be, all the time at the limit ---- */

#define THREADS 4
#define ROUNDS 100000

static _Atomic int64_t handed_out;
static _Atomic uint64_t over, grants[THREADS], thread_refusals;

static void *allocate_and_free(void *argument) {
    uint32_t index = (uint32_t)(uintptr_t)argument;
    struct page page = page_of(index % 2); /* two processes with two threads each */
    uint32_t lane = index / 2 % GPUSLICE_LANES;
    unsigned int seed = index + 1;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t units = 1 + (uint64_t)rand_r(&seed) % 60;
        if (!reserve(&page, 0, lane, units * GPUSLICE_UNIT)) {
            reserve_count_denied(&page, 0);
            atomic_fetch_add(&thread_refusals, 1);
            continue;
        }
        atomic_fetch_add(&grants[index % 2], 1);
        if (atomic_fetch_add(&handed_out, (int64_t)units) + (int64_t)units > 100) {
            atomic_fetch_add(&over, 1);
        }
        atomic_fetch_sub(&handed_out, (int64_t)units);
        reserve_release(&page, 0, lane, units * GPUSLICE_UNIT);
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[THREADS];
    open_books(2, 100);
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, allocate_and_free, (void *)i) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(atomic_load(&over) == 0);
    CHECK(all_used() == 0 && all_charged() <= 100);
    uint64_t denied = 0;
    for (uint32_t slot = 0; slot < 2; slot++) {
        uint64_t granted = 0;
        for (uint32_t lane = 0; lane < GPUSLICE_LANES; lane++) {
            const struct gpuslice_cell *cell = cell_of(slot) + lane;
            granted += atomic_load(&cell->granted);
            denied += atomic_load(&cell->denied);
            CHECK(atomic_load(&cell->peak) <= 100 * GPUSLICE_UNIT);
        }
        CHECK(granted == atomic_load(&grants[slot]));
        CHECK(atomic_load(&cell_of(slot)->peak) > 0);
    }
    CHECK(denied == atomic_load(&thread_refusals));
}

/* ---- numbers at their edges ---- */

static void lower_limit(uint64_t units) {
    atomic_store(&control.gpus[0].limit_bytes, units * GPUSLICE_UNIT);
    atomic_fetch_add(&control.gpus[0].epoch, 1);
}

static void sizes_at_their_edges(void) {
    struct page page = page_of(0);
    open_books(1, UINT64_MAX / GPUSLICE_UNIT);
    CHECK(!reserve(&page, 0, 0, UINT64_MAX));
    CHECK(!reserve(&page, 0, 0, GPUSLICE_BYTES_MASK + 1));
    CHECK(take_units(&page, GPUSLICE_UNITS_MASK));
    CHECK(!reserve(&page, 0, 0, 1));
    CHECK(reserve(&page, 0, 0, 0));
    give_units(&page, GPUSLICE_UNITS_MASK);
    CHECK(booked(0) == 0 && spare_of(0) == GPUSLICE_SPARE_MASK && charged_to(0) == spare_of(0));
    CHECK(reserve(&page, 0, 0, 1) && booked(0) == 1); /* a unit is the least */
    reserve_release(&page, 0, 0, 1);
    CHECK(booked(0) == 0 && atomic_load(&cell_of(0)->granted) == 3);
}

static void limits_that_change(void) {
    struct page page = page_of(0);
    open_books(1, 5);
    CHECK(take_units(&page, 5));
    lower_limit(1); /* below what is held: nothing new, and nothing wraps */
    CHECK(!take_units(&page, 1) && booked(0) == 5);
    atomic_store(&control.gpus[0].limit_bytes, 6 * GPUSLICE_UNIT);
    CHECK(take_units(&page, 1) && booked(0) == 6);
    atomic_store(&cell_of(0)->overhead, 3 * GPUSLICE_UNIT); /* what the agent found counts too */
    atomic_store(&control.gpus[0].limit_bytes, 10 * GPUSLICE_UNIT);
    CHECK(!take_units(&page, 2) && take_units(&page, 1));
    give_units(&page, 3);
    CHECK(booked(0) == 4 && spare_of(0) == 3);
    lower_limit(7); /* what is held and the overhead: what is kept is not handed out again */
    CHECK(!take_units(&page, 1) && booked(0) == 4);
    give_units(&page, 1);
    CHECK(take_units(&page, 1) && !take_units(&page, 1) && booked(0) == 4);
}

static void a_part_of_the_limit_is_kept(void) {
    struct page page = page_of(0), other = page_of(1);
    open_books(2, 640);
    spare_part = 64;
    CHECK(take_units(&page, 100));
    give_units(&page, 8);
    CHECK(spare_of(0) == 8 && booked(0) == 92);
    give_units(&page, 90);
    CHECK(spare_of(0) == 10 && booked(0) == 2 && charged_to(0) == 12);
    CHECK(all_used() == 2 && all_charged() == 12);
    CHECK(take_units(&other, 638) && spare_of(0) == 0); /* all that is not used can be had */
    CHECK(!take_units(&other, 1));
    CHECK(atomic_load(&cell_of(1)->peak) == 640 * GPUSLICE_UNIT);
    spare_part = 1;
}

static void lanes_are_cells_of_their_own(void) {
    struct page page = page_of(0);
    uint32_t last = GPUSLICE_LANES - 1;
    open_books(1, 100);
    CHECK(reserve(&page, 0, last, 60 * GPUSLICE_UNIT) && charged_to(0) == (last == 0 ? 60 : 0));
    CHECK(!take_units(&page, 41) && take_units(&page, 40) && all_used() == 100);
    reserve_release(&page, 0, last, 60 * GPUSLICE_UNIT);
    CHECK(all_used() == 40 && all_charged() == 100);
    CHECK(take_units(&page, 60) && all_used() == 100 && all_charged() == 100); /* one lane's spare is another's room */
}

static void forged_cells(void) {
    struct page page = page_of(0);
    open_books(2, 100);
    atomic_store(&cell_of(1)->charged, 7 | 50ull << GPUSLICE_SPARE_SHIFT); /* more spare than there is */
    CHECK(all_charged() == 7 && all_used() == 0);
    CHECK(take_units(&page, 100) && charged_to(1) == 0 && spare_of(1) == 0);
    atomic_store(&cell_of(1)->charged, UINT64_MAX);
    CHECK(!take_units(&page, 1));
    atomic_store(&cell_of(1)->charged, 0);
    atomic_store(&cell_of(0)->charged, 3); /* less than what it will give back */
    give_units(&page, 100);
    CHECK(booked(0) == 0 && charged_to(0) == spare_of(0) && spare_of(0) <= 100);
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
        sizes_at_their_edges();
        limits_that_change();
        a_part_of_the_limit_is_kept();
        lanes_are_cells_of_their_own();
        forged_cells();
        test_threads();
    } else {
        return 2;
    }
    return check_summary();
}
