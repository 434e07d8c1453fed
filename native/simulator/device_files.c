/* Reading the folder of device files: once, because what is mounted into a container stays. */
#define _GNU_SOURCE
#include "device_files.h"

#include <dirent.h>
#include <pthread.h>
#include <string.h>

#define MAX_FILES (SIM_MAX_GPUS * SIM_DOMAINS_PER_GPU)
#define UUID_SIZE sizeof((struct sim_compute_instance *)0)->uuid

static struct {
    bool all;
    uint32_t count;
    char uuids[MAX_FILES][UUID_SIZE];
} files;

static void read_files(void) {
    DIR *folder = opendir(DEVICE_FILES);
    files.all = folder == NULL;
    if (folder == NULL) {
        return;
    }
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        size_t length = strlen(entry->d_name);
        if (strcmp(entry->d_name, "all") == 0) {
            files.all = true;
        } else if (length < UUID_SIZE && files.count < MAX_FILES) {
            memcpy(files.uuids[files.count++], entry->d_name, length + 1);
        }
    }
    closedir(folder);
}

static bool has_file(const char *uuid) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_files);
    bool found = files.all;
    for (uint32_t n = 0; !found && n < files.count; n++) {
        found = strcmp(files.uuids[n], uuid) == 0;
    }
    return found;
}

static bool compute_instance_has_file(const struct sim_gpu_instance *instance, uint32_t compute) {
    const struct sim_compute_instance *found = &instance->compute[compute];
    return atomic_load(&instance->used) && atomic_load(&found->used) && has_file(found->uuid);
}

bool device_file_of_gpu(const struct sim_machine *machine, uint32_t gpu) {
    if (has_file(machine->description.gpus[gpu].uuid)) {
        return true;
    }
    for (uint32_t instance = 0; instance < SIM_MAX_INSTANCES; instance++) {
        for (uint32_t compute = 0; compute < SIM_MAX_COMPUTE_INSTANCES; compute++) {
            if (compute_instance_has_file(&machine->gpus[gpu].instances[instance], compute)) {
                return true;
            }
        }
    }
    return false;
}

bool device_file_of_compute_instance(const struct sim_machine *machine, uint32_t gpu, uint32_t instance,
                                     uint32_t compute) {
    return has_file(machine->description.gpus[gpu].uuid) ||
           compute_instance_has_file(&machine->gpus[gpu].instances[instance], compute);
}
