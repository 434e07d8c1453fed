/* Device time. A GPU (or a MIG instance) is shared by the processes that have work on it in equal time slices. The
 * slices are infinitely short: with n busy processes each advances at 1/n. `progress` is what one process that is
 * always busy has been served; it grows by (time / n) and stands still while nothing runs. A process that submits work
 * of d needs progress to grow by d, so every point in its queue is a value of progress, known at submission, and no
 * later arrival changes it: only the wall-clock time at which progress gets there moves. That makes submission one
 * atomic add; time is worked out when a call asks for it, without a thread.
 *
 * Progress is in 1/1024 ns so that division by n loses nothing that matters. */
#ifndef GPUSLICE_SIMULATOR_ENGINE_H
#define GPUSLICE_SIMULATOR_ENGINE_H

#include "machine.h"

#define SIM_PROGRESS_SHIFT 10

uint64_t sim_clock_ns(void);

/* Queues `duration_ns` of work of this process on the domain. Returns the progress at which it is done. */
uint64_t sim_engine_submit(struct sim_process *process, uint32_t domain, uint64_t duration_ns);
/* Has progress reached this point? */
bool sim_engine_reached(struct sim_process *process, uint32_t domain, uint64_t progress);
/* Sleeps until it has. */
void sim_engine_wait(struct sim_process *process, uint32_t domain, uint64_t progress);
/* The wall-clock time at which progress got there; only for points that were reached. */
uint64_t sim_engine_time_of(struct sim_process *process, uint32_t domain, uint64_t progress);

/* Utilization in percent over about the last second: of the domain, and of one slot on it. */
uint32_t sim_engine_utilization(struct sim_process *process, uint32_t domain);
uint32_t sim_engine_utilization_of(struct sim_process *process, uint32_t domain, uint32_t slot);
/* Nanoseconds of device time that the slot was served since it started. */
uint64_t sim_engine_served_ns(struct sim_process *process, uint32_t domain, uint32_t slot);

#endif
