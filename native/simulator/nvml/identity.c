/* The identity of a device: names, numbers, its place on the bus. */
#define _GNU_SOURCE
#include "internal.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* PCI's class of a 3D controller, and of a graphics card with a display. */
#define PCI_BASE_CLASS_DISPLAY 0x03u
#define PCI_SUBCLASS_VGA 0x00u
#define PCI_SUBCLASS_3D 0x02u

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, name, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    char text[sizeof target.spec->name + 64];
    snprintf(text, sizeof text, "%s", target.spec->name);
    if (target.compute != NULL) {
        char profile[48];
        mig_name(&target, target.compute->slices, profile, sizeof profile);
        snprintf(text, sizeof text, "%s MIG %s", target.spec->name, profile);
    }
    return put_string(name, length, text);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, uuid, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    return put_string(uuid, length, target.compute != NULL ? target.compute->uuid : target.spec->uuid);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, serial, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    bool has_serial = target.spec->serial[0] != '\0' && !is_geforce(target.spec);
    return has_serial ? put_string(serial, length, target.spec->serial) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *part_number, unsigned int length) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, part_number, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    char text[32];
    snprintf(text, sizeof text, "900-2%04X-0000-000", target.spec->pci_device_id >> 16);
    return put_string(part_number, length, text);
}

/* The first number of a VBIOS version says the generation. */
nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    struct target target;
    nvmlReturn_t result = enter(device, WHOLE_GPU, version, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    static const unsigned int generations[] = {
        [NVML_DEVICE_ARCH_TURING] = 0x90,
        [NVML_DEVICE_ARCH_AMPERE] = 0x92,
        [NVML_DEVICE_ARCH_ADA] = 0x95,
        [NVML_DEVICE_ARCH_HOPPER] = 0x96,
    };
    uint32_t architecture = target.spec->architecture;
    unsigned int generation = architecture < sizeof generations / sizeof *generations ? generations[architecture] : 0;
    char text[32];
    snprintf(text, sizeof text, "%02X.00.%02X.00.01", generation, target.spec->pci_device_id >> 24);
    return put_string(version, length, text);
}

GETTER(nvmlDeviceGetMinorNumber, WHOLE_GPU, unsigned int, target.gpu)
GETTER(nvmlDeviceGetBoardId, WHOLE_GPU, unsigned int, target.spec->pci_bus << 8 | target.spec->pci_device)
GETTER(nvmlDeviceGetMultiGpuBoard, WHOLE_GPU, unsigned int, 0)
GETTER(nvmlDeviceGetBrand, ANY_DEVICE, nvmlBrandType_t, target.spec->brand)
GETTER(nvmlDeviceGetArchitecture, ANY_DEVICE, nvmlDeviceArchitecture_t, target.spec->architecture)
GETTER(nvmlDeviceGetMemoryBusWidth, WHOLE_GPU, unsigned int, target.spec->memory_bus_bits)
GETTER(nvmlDeviceGetBusType, WHOLE_GPU, nvmlBusType_t, NVML_BUS_TYPE_PCIE)
GETTER(nvmlDeviceGetVirtualizationMode, WHOLE_GPU, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)

static unsigned int cores_per_multiprocessor(const struct sim_gpu_spec *spec) {
    bool half = spec->architecture == NVML_DEVICE_ARCH_TURING || (spec->compute_major == 8 && spec->compute_minor == 0);
    return half ? 64 : 128;
}

GETTER_IF(nvmlDeviceGetNumGpuCores, WHOLE_GPU, !mig_enabled(&target), unsigned int,
          target.spec->multiprocessors *cores_per_multiprocessor(target.spec))

PAIR_GETTER_IF(nvmlDeviceGetCudaComputeCapability, ANY_DEVICE, true, int, target.spec->compute_major,
               target.spec->compute_minor)

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int *same) {
    struct target first, second;
    nvmlReturn_t result = enter(device1, WHOLE_GPU, same, &first);
    if (result == NVML_SUCCESS) {
        result = enter(device2, WHOLE_GPU, same, &second);
    }
    if (result == NVML_SUCCESS) {
        *same = first.gpu == second.gpu;
    }
    return result;
}

/* ---- PCI: each version wrote more than the one before; an old caller's structure ends where its version did ---- */

static nvmlPciInfo_t pci_info(const struct sim_gpu_spec *spec) {
    nvmlPciInfo_t info;
    memset(&info, 0, sizeof info);
    info.domain = spec->pci_domain;
    info.bus = spec->pci_bus;
    info.device = spec->pci_device;
    info.pciDeviceId = spec->pci_device_id;
    info.pciSubSystemId = spec->pci_subsystem_id;
    snprintf(info.busIdLegacy, sizeof info.busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, info.domain & 0xFFFFu,
             info.bus & 0xFFu, info.device & 0xFFu);
    snprintf(info.busId, sizeof info.busId, NVML_DEVICE_PCI_BUS_ID_FMT, NVML_DEVICE_PCI_BUS_ID_FMT_ARGS(&info));
    return info;
}

static nvmlReturn_t put_pci_info(nvmlDevice_t device, nvmlPciInfo_t *pci, size_t size) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, pci, &target);
    if (result == NVML_SUCCESS) {
        nvmlPciInfo_t info = pci_info(target.spec);
        memcpy(pci, &info, size);
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return put_pci_info(device, pci, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return put_pci_info(device, pci, offsetof(nvmlPciInfo_t, busId));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return put_pci_info(device, pci, sizeof *pci);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, pci, &target);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (pci->version != nvmlPciInfoExt_v1) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    nvmlPciInfo_t info = pci_info(target.spec);
    pci->domain = info.domain;
    pci->bus = info.bus;
    pci->device = info.device;
    pci->pciDeviceId = info.pciDeviceId;
    pci->pciSubSystemId = info.pciSubSystemId;
    pci->baseClass = PCI_BASE_CLASS_DISPLAY;
    pci->subClass = is_geforce(target.spec) ? PCI_SUBCLASS_VGA : PCI_SUBCLASS_3D;
    memcpy(pci->busId, info.busId, sizeof pci->busId);
    return NVML_SUCCESS;
}
