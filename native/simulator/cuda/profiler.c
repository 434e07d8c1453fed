/* The profiler's switch. Nothing records here, so turning it on and off succeeds and does nothing. */
#include "driver.h"

/* cudaProfiler.h is not in NVIDIA's wheels. */
CUresult CUDAAPI cuProfilerStart(void);
CUresult CUDAAPI cuProfilerStop(void);

static CUresult answer(void) {
    struct context *context;
    return context_current(&context);
}

CUresult CUDAAPI cuProfilerStart(void) {
    return answer();
}

CUresult CUDAAPI cuProfilerStop(void) {
    return answer();
}
