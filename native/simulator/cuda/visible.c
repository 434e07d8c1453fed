/* Which CUDA devices this process sees. NVIDIA's rules: the list in CUDA_VISIBLE_DEVICES ends at the first entry that
 * names nothing; CUDA uses a single compute instance per process, and no whole GPU beside it. */
#define _GNU_SOURCE
#include "visible.h"

#include "device_files.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool uuid_parse(const char *text, CUuuid *uuid) {
    const char *digits = strchr(text, '-');
    int read = 0;
    memset(uuid, 0, sizeof *uuid);
    for (const char *c = digits == NULL ? "" : digits + 1; *c != '\0' && read < 32; c++) {
        if (*c == '-') {
            continue;
        }
        if (!isxdigit((unsigned char)*c)) {
            return false;
        }
        int digit = isdigit((unsigned char)*c) ? *c - '0' : tolower((unsigned char)*c) - 'a' + 10;
        uuid->bytes[read / 2] = (char)((unsigned char)uuid->bytes[read / 2] | (digit << (read % 2 ? 0 : 4)));
        read++;
    }
    return read == 32;
}

/* The order in which CUDA numbers the GPUs that it can reach: by speed, unless the user wants the order of the bus. */
static int order_gpus(const struct sim_machine *machine, uint32_t *order) {
    int count = 0;
    for (uint32_t gpu = 0; gpu < machine->description.gpu_count; gpu++) {
        if (device_file_of_gpu(machine, gpu)) {
            order[count++] = gpu;
        }
    }
    const char *wanted = getenv("CUDA_DEVICE_ORDER");
    if (wanted != NULL && strcmp(wanted, "PCI_BUS_ID") == 0) {
        return count;
    }
    const struct sim_gpu_spec *gpus = machine->description.gpus;
    for (int i = 1; i < count; i++) { /* insertion keeps equals in the order of the bus */
        for (int j = i; j > 0 && gpus[order[j]].multiprocessors > gpus[order[j - 1]].multiprocessors; j--) {
            uint32_t swap = order[j];
            order[j] = order[j - 1];
            order[j - 1] = swap;
        }
    }
    return count;
}

static void fill_gpu(const struct sim_machine *machine, uint32_t gpu, struct device *device) {
    const struct sim_gpu_spec *spec = &machine->description.gpus[gpu];
    memset(device, 0, sizeof *device);
    device->gpu = gpu;
    device->domain = sim_domain(gpu, 0);
    device->spec = spec;
    device->multiprocessors = spec->multiprocessors;
    device->memory_bytes = spec->memory_bytes;
    snprintf(device->name, sizeof device->name, "%s", spec->name);
    uuid_parse(spec->uuid, &device->uuid);
}

static void fill_instance(const struct sim_machine *machine, uint32_t gpu, uint32_t instance, uint32_t compute,
                          struct device *device) {
    const struct sim_gpu_instance *partition = &machine->gpus[gpu].instances[instance];
    const struct sim_compute_instance *part = &partition->compute[compute];
    fill_gpu(machine, gpu, device);
    const struct sim_profile *profile = &device->spec->profiles[partition->profile];
    device->domain = sim_domain(gpu, 1 + instance);
    device->memory_bytes = profile->memory_bytes;
    device->multiprocessors =
        profile->multiprocessors * part->slices / (profile->compute_slices ? profile->compute_slices : 1);
    snprintf(device->name, sizeof device->name, "%s MIG %s", device->spec->name, profile->name);
    uuid_parse(part->uuid, &device->uuid);
}

/* The first compute instance of the GPU whose UUID starts with `prefix` ("" takes the first of all). */
static bool find_instance(const struct sim_machine *machine, uint32_t gpu, const char *prefix, struct device *device) {
    if (!atomic_load(&machine->gpus[gpu].mig_mode)) {
        return false;
    }
    for (uint32_t instance = 0; instance < SIM_MAX_INSTANCES; instance++) {
        const struct sim_gpu_instance *partition = &machine->gpus[gpu].instances[instance];
        for (uint32_t compute = 0; atomic_load(&partition->used) && compute < SIM_MAX_COMPUTE_INSTANCES; compute++) {
            const struct sim_compute_instance *part = &partition->compute[compute];
            char old_name[96]; /* the form of drivers before 470: MIG-GPU-<uuid>/<instance>/<compute instance> */
            snprintf(old_name, sizeof old_name, "MIG-%s/%u/%u", machine->description.gpus[gpu].uuid, partition->id, part->id);
            if (atomic_load(&part->used) && device_file_of_compute_instance(machine, gpu, instance, compute) &&
                (strncmp(part->uuid, prefix, strlen(prefix)) == 0 || strcmp(old_name, prefix) == 0)) {
                fill_instance(machine, gpu, instance, compute, device);
                return true;
            }
        }
    }
    return false;
}

static bool named_device(const struct sim_machine *machine, const uint32_t *order, int count, const char *entry,
                         struct device *device) {
    if (strncmp(entry, "MIG-", 4) == 0) {
        for (int i = 0; i < count; i++) {
            if (find_instance(machine, order[i], entry, device)) {
                return true;
            }
        }
        return false;
    }
    int found = -1;
    if (strncmp(entry, "GPU-", 4) == 0) {
        for (int i = 0; i < count; i++) {
            if (strncmp(machine->description.gpus[order[i]].uuid, entry, strlen(entry)) == 0) {
                if (found != -1) {
                    return false; /* a prefix of two names neither */
                }
                found = i;
            }
        }
    } else {
        char *end = NULL;
        long number = strtol(entry, &end, 10);
        found = end != entry && *end == '\0' && number >= 0 && number < count ? (int)number : -1;
    }
    if (found == -1) {
        return false;
    }
    if (atomic_load(&machine->gpus[order[found]].mig_mode)) {
        return find_instance(machine, order[found], "", device);
    }
    fill_gpu(machine, order[found], device);
    return true;
}

static bool is_instance(const struct device *device) {
    return device->domain % SIM_DOMAINS_PER_GPU != 0;
}

static int number_devices(struct device *devices, int count) {
    for (int i = 0; i < count; i++) {
        if (is_instance(&devices[i])) { /* one compute instance, and nothing else */
            devices[0] = devices[i];
            count = 1;
            break;
        }
    }
    for (int i = 0; i < count; i++) {
        devices[i].ordinal = i;
    }
    return count;
}

int visible_devices(const struct sim_machine *machine, struct device *devices) {
    uint32_t order[SIM_MAX_GPUS];
    int count = order_gpus(machine, order), seen = 0;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible == NULL) {
        for (int i = 0; i < count; i++) {
            if (!atomic_load(&machine->gpus[order[i]].mig_mode)) {
                fill_gpu(machine, order[i], &devices[seen++]);
            } else if (find_instance(machine, order[i], "", &devices[seen])) {
                seen++;
            }
        }
        return number_devices(devices, seen);
    }
    char list[2048];
    snprintf(list, sizeof list, "%s", visible);
    char *rest = list;
    for (char *entry; seen < (int)SIM_MAX_GPUS && (entry = strsep(&rest, ",")) != NULL;) {
        entry += strspn(entry, " \t");
        entry[strcspn(entry, " \t")] = '\0';
        if (!named_device(machine, order, count, entry, &devices[seen])) {
            break;
        }
        for (int i = 0; i < seen; i++) {
            if (devices[i].domain == devices[seen].domain) {
                return 0; /* naming a device twice hides them all */
            }
        }
        seen++;
    }
    return number_devices(devices, seen);
}
