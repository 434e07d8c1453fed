/* Processes on a GPU: those of the tenant's own sessions, as the tenant knows them, and no others.
 *
 * NVML may name processes by the machine's numbers or by those of the caller's PID namespace. The agent tells both. In a
 * namespace of its own a tenant's small numbers may also be the machine's numbers of others; so the machine's are looked
 * for first, and the tenant's own only where none of them is there. Without the agent's word a process sees itself. */
#include "slice.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_PROCESSES (GPUSLICE_SLOTS * 4u) /* of several sessions together */
#define MOST_ENTRIES 65536u
#define LARGEST_RECORD 32u /* R535.54 wrote so much for each process where its header says 24 */
#define UNWRITTEN 0xa5

struct members {
    uint32_t count;
    struct gpuslice_process *processes; /* NULL: only the process itself is known */
};

static struct members find_members(void) {
    struct members members = {.processes = malloc(MOST_PROCESSES * sizeof(struct gpuslice_process))};
    if (members.processes != NULL) {
        members.count = session_processes(members.processes, MOST_PROCESSES);
    }
    return members;
}

/* The number by which the tenant knows the process; 0 for others'. */
static unsigned int shown_pid(const struct members *members, unsigned int pid, bool machine) {
    for (uint32_t i = 0; i < members->count; i++) {
        const struct gpuslice_process *process = &members->processes[i];
        if (pid == (machine ? process->pid : process->own_pid) && pid != 0) {
            return process->own_pid != 0 ? process->own_pid : process->pid;
        }
    }
    return !machine && pid == (unsigned int)getpid() ? pid : 0;
}

/* The machine's number of a process that the tenant names; 0 for others'. A process on its own knows only its own. */
static unsigned int machine_pid(unsigned int pid) {
    struct members members = find_members();
    unsigned int found = pid == (unsigned int)getpid() ? pid : 0;
    for (uint32_t i = 0; i < members.count; i++) {
        const struct gpuslice_process *process = &members.processes[i];
        if (pid != 0 && pid == (process->own_pid != 0 ? process->own_pid : process->pid)) {
            found = process->pid;
        }
    }
    free(members.processes);
    return found;
}

struct list { /* entries of some structure, with the number of a process in each */
    char *entries;
    size_t size, pid_offset;
    unsigned int count;
    bool may_be_larger; /* than the header says */
};

static unsigned int *pid_of(const struct list *list, unsigned int n) {
    return (unsigned int *)(void *)(list->entries + n * list->size + list->pid_offset);
}

static unsigned int keep(struct list *list, const struct members *members, bool machine) {
    unsigned int kept = 0;
    for (unsigned int n = 0; n < list->count; n++) {
        unsigned int pid = shown_pid(members, *pid_of(list, n), machine);
        if (pid != 0) {
            *pid_of(list, n) = pid;
            memmove(list->entries + kept++ * list->size, list->entries + n * list->size, list->size);
        }
    }
    return kept;
}

static void keep_own(struct list *list) {
    struct members members = find_members();
    unsigned int kept = keep(list, &members, true);
    list->count = kept != 0 ? kept : keep(list, &members, false);
    free(members.processes);
}

/* Asks for the whole list, with room that grows until it fits. */
typedef nvmlReturn_t (*asking)(void *what, unsigned int *count, void *entries);

static nvmlReturn_t ask_for_all(asking ask, void *what, struct list *list) {
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int room = 64; result == NVML_ERROR_INSUFFICIENT_SIZE && room <= MOST_ENTRIES; room *= 4) {
        size_t bytes = room * (list->size > LARGEST_RECORD ? list->size : LARGEST_RECORD);
        char *grown = realloc(list->entries, bytes);
        if (grown == NULL) {
            return NVML_ERROR_MEMORY;
        }
        memset(grown, UNWRITTEN, bytes);
        list->entries = grown;
        list->count = room;
        result = ask(what, &list->count, list->entries);
    }
    return result;
}

/* How far apart the records are that the driver wrote: what lies behind records of the declared size tells. The caller
 * gets them as the driver writes them, which is what programs that know of that driver expect. */
static size_t written_size(const struct list *list) {
    for (size_t byte = list->count * list->size; byte < list->count * (size_t)LARGEST_RECORD; byte++) {
        if ((unsigned char)list->entries[byte] != UNWRITTEN) {
            return LARGEST_RECORD;
        }
    }
    return list->size;
}

/* Gives the caller what is its own, as NVML gives a list: whole or not at all, and how long it is. */
static nvmlReturn_t give(asking ask, void *what, struct list list, unsigned int *count, void *entries) {
    nvmlReturn_t result = ask_for_all(ask, what, &list);
    if (result == NVML_SUCCESS) {
        if (list.may_be_larger) {
            list.size = written_size(&list);
        }
        keep_own(&list);
        unsigned int room = entries == NULL ? 0 : *count;
        if (list.count > room) {
            result = NVML_ERROR_INSUFFICIENT_SIZE;
        } else if (list.count != 0) {
            memcpy(entries, list.entries, list.count * list.size);
        }
        *count = list.count;
    }
    free(list.entries);
    return result;
}

/* ---- lists of running processes ---- */

typedef nvmlReturn_t (*running)(nvmlDevice_t device, unsigned int *count, void *infos);

struct running_list {
    nvmlDevice_t device;
    running real;
};

static nvmlReturn_t ask_running(void *what, unsigned int *count, void *entries) {
    const struct running_list *list = what;
    return list->real(list->device, count, entries);
}

static nvmlReturn_t list_running(nvmlDevice_t device, running real, size_t size, unsigned int *count, void *infos) {
    if (count == NULL || (*count != 0 && infos == NULL)) {
        return real(device, count, infos); /* which says what is wrong */
    }
    struct list list = {.size = size, .may_be_larger = size == sizeof(nvmlProcessInfo_t)};
    return give(ask_running, &(struct running_list){device, real}, list, count, infos);
}

#define RUNNING(name, type)                                                                                            \
    _Static_assert(offsetof(type, pid) == 0, "the number comes first");                                                \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos) {                                         \
        return list_running(device, (running)REAL(name), sizeof(type), count, infos);                                  \
    }

RUNNING(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

struct detail_list {
    nvmlDevice_t device;
    nvmlProcessDetailList_t list;
};

static nvmlReturn_t ask_details(void *what, unsigned int *count, void *entries) {
    struct detail_list *detail = what;
    detail->list.numProcArrayEntries = *count;
    detail->list.procArray = entries;
    nvmlReturn_t result = REAL(nvmlDeviceGetRunningProcessDetailList)(detail->device, &detail->list);
    *count = detail->list.numProcArrayEntries;
    return result;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    if (list == NULL || list->version != nvmlProcessDetailList_v1 ||
        (list->numProcArrayEntries != 0 && list->procArray == NULL)) {
        return REAL(nvmlDeviceGetRunningProcessDetailList)(device, list);
    }
    struct list entries = {.size = sizeof *list->procArray, .pid_offset = offsetof(nvmlProcessDetail_v1_t, pid)};
    return give(ask_details, &(struct detail_list){device, *list}, entries, &list->numProcArrayEntries, list->procArray);
}

/* ---- what each does ---- */

struct sampled {
    nvmlDevice_t device;
    unsigned long long last_seen;
};

static nvmlReturn_t ask_samples(void *what, unsigned int *count, void *entries) {
    const struct sampled *sampled = what;
    return REAL(nvmlDeviceGetProcessUtilization)(sampled->device, entries, count, sampled->last_seen);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen) {
    if (count == NULL) {
        return REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, last_seen);
    }
    struct list entries = {.size = sizeof *samples, .pid_offset = offsetof(nvmlProcessUtilizationSample_t, pid)};
    nvmlReturn_t result = give(ask_samples, &(struct sampled){device, last_seen}, entries, count, samples);
    return result == NVML_SUCCESS && *count == 0 ? NVML_ERROR_NOT_FOUND : result;
}

struct sampled_info {
    nvmlDevice_t device;
    nvmlProcessesUtilizationInfo_t info;
};

static nvmlReturn_t ask_infos(void *what, unsigned int *count, void *entries) {
    struct sampled_info *sampled = what;
    sampled->info.processSamplesCount = *count;
    sampled->info.procUtilArray = entries;
    nvmlReturn_t result = REAL(nvmlDeviceGetProcessesUtilizationInfo)(sampled->device, &sampled->info);
    *count = sampled->info.processSamplesCount;
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
    if (info == NULL || info->version != nvmlProcessesUtilizationInfo_v1) {
        return REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
    }
    struct list entries = {.size = sizeof *info->procUtilArray, .pid_offset = offsetof(nvmlProcessUtilizationInfo_v1_t, pid)};
    nvmlReturn_t result = give(ask_infos, &(struct sampled_info){device, *info}, entries, &info->processSamplesCount,
                               info->procUtilArray);
    return result == NVML_SUCCESS && info->processSamplesCount == 0 ? NVML_ERROR_NOT_FOUND : result;
}

/* ---- accounting, and names ---- */

static nvmlReturn_t ask_accounted(void *what, unsigned int *count, void *entries) {
    return REAL(nvmlDeviceGetAccountingPids)(*(nvmlDevice_t *)what, count, entries);
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids) {
    if (count == NULL || (*count != 0 && pids == NULL)) {
        return REAL(nvmlDeviceGetAccountingPids)(device, count, pids);
    }
    return give(ask_accounted, &device, (struct list){.size = sizeof *pids}, count, pids);
}

/* Asked by the number that the machine has for a process of the session: another's may be the tenant's own number. */
nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats) {
    unsigned int number = machine_pid(pid);
    return number != 0 ? REAL(nvmlDeviceGetAccountingStats)(device, number, stats) : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats) {
    if (stats == NULL) {
        return REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
    }
    unsigned int pid = stats->pid, number = machine_pid(pid);
    if (number == 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    stats->pid = number;
    nvmlReturn_t result = REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
    stats->pid = pid;
    return result;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    return machine_pid(pid) != 0 ? REAL(nvmlSystemGetProcessName)(pid, name, length) : NVML_ERROR_NOT_FOUND;
}

/* ---- a slice is no host of virtual GPUs, whose processes these would name ---- */

nvmlReturn_t nvmlDeviceGetVgpuProcessUtilization(nvmlDevice_t device, unsigned long long last_seen, unsigned int *count,
                                                 nvmlVgpuProcessUtilizationSample_t *samples) {
    (void)device, (void)last_seen, (void)count, (void)samples;
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetVgpuProcessesUtilizationInfo(nvmlDevice_t device, nvmlVgpuProcessesUtilizationInfo_t *info) {
    (void)device, (void)info;
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlVgpuInstanceGetAccountingPids(nvmlVgpuInstance_t instance, unsigned int *count, unsigned int *pids) {
    (void)instance, (void)count, (void)pids;
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlVgpuInstanceGetAccountingStats(nvmlVgpuInstance_t instance, unsigned int pid, nvmlAccountingStats_t *stats) {
    (void)instance, (void)pid, (void)stats;
    return NVML_ERROR_NOT_SUPPORTED;
}
