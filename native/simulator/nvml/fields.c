/* Field values: NVML's other way to ask, many questions in one call with an answer or an error for each. */
#include "internal.h"

static void put_unsigned(nvmlFieldValue_t *field, unsigned int value) {
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = value;
    field->nvmlReturn = NVML_SUCCESS;
}

static void put_unsigned_long(nvmlFieldValue_t *field, unsigned long long value) {
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    field->value.ullVal = value;
    field->nvmlReturn = NVML_SUCCESS;
}

/* The same answer as the function that asks for it alone. */
#define PUT_FROM(put, type, function)                                                                                  \
    do {                                                                                                               \
        type value_;                                                                                                   \
        field->nvmlReturn = function(device, &value_);                                                                 \
        if (field->nvmlReturn == NVML_SUCCESS) {                                                                       \
            put(field, value_);                                                                                        \
        }                                                                                                              \
    } while (0)

static void answer(nvmlDevice_t device, nvmlFieldValue_t *field) {
    switch (field->fieldId) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING:
        PUT_FROM(put_unsigned, nvmlEnableState_t, nvmlDeviceGetDefaultEccMode);
        break;
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
        PUT_FROM(put_unsigned_long, unsigned long long, nvmlDeviceGetTotalEnergyConsumption);
        break;
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
        PUT_FROM(put_unsigned, unsigned int, nvmlDeviceGetPowerUsage);
        break;
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
        PUT_FROM(put_unsigned, unsigned int, nvmlDeviceGetPcieReplayCounter);
        break;
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
        put_unsigned(field, 0);
        break;
    default:
        field->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields) {
    struct target target;
    nvmlReturn_t result = enter(device, ANY_DEVICE, fields, &target);
    if (result == NVML_SUCCESS && count <= 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (int n = 0; result == NVML_SUCCESS && n < count; n++) {
        fields[n].timestamp = (long long)realtime_us();
        fields[n].latencyUsec = 0;
        answer(device, &fields[n]);
    }
    return result;
}
