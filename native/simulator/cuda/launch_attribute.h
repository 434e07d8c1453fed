/* Sets of launch attributes, of a stream or of a kernel node: an array by identifier, made when the first is set. */
#ifndef GPUSLICE_SIMULATOR_LAUNCH_ATTRIBUTE_H
#define GPUSLICE_SIMULATOR_LAUNCH_ATTRIBUTE_H

#include "driver.h"

CUresult launch_attribute_set(CUlaunchAttributeValue **values, CUlaunchAttributeID identifier,
                              const CUlaunchAttributeValue *value);
CUresult launch_attribute_get(const CUlaunchAttributeValue *values, CUlaunchAttributeID identifier,
                              CUlaunchAttributeValue *value);
CUresult launch_attribute_copy(CUlaunchAttributeValue **to, const CUlaunchAttributeValue *from);

#endif
