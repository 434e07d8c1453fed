/* A CUDA program against NVIDIA's runtime and nothing else: it does not know that its GPUs are simulated.
 *
 * usage: saxpy DEVICE
 *
 * Computes y = 2 x + y on the device, checks it on the host, prints one line of a table, and keeps its memory until its
 * standard input ends, so that others can see it at work. */
#include "kernel.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT (16u << 20)
#define BYTES (COUNT * sizeof(float))

static void check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) {
        return;
    }
    fprintf(stderr, "error: %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static float *host_vector(void) {
    float *values = malloc(BYTES);
    if (values == NULL) {
        perror("error: malloc");
        exit(1);
    }
    return values;
}

static float *on_device(const float *values) {
    void *device = NULL;
    check(cudaMalloc(&device, BYTES), "cudaMalloc");
    check(cudaMemcpy(device, values, BYTES, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
    return device;
}

/* y = a x + y on the device; gives the time that the device took. */
static float compute(float a, const float *x, float *y) {
    cudaEvent_t begin, end;
    float milliseconds = 0;
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
    check(cudaEventRecord(begin, NULL), "cudaEventRecord");
    check(launch_saxpy(a, x, y, COUNT), "launching the kernel");
    check(cudaEventRecord(end, NULL), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    check(cudaEventDestroy(begin), "cudaEventDestroy");
    check(cudaEventDestroy(end), "cudaEventDestroy");
    return milliseconds;
}

int main(int argc, char **argv) {
    int device = argc > 1 ? atoi(argv[1]) : 0;
    int runtime = 0, driver = 0;
    struct cudaDeviceProp properties;
    check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");

    float *x = host_vector(), *y = host_vector(), *result = host_vector();
    for (unsigned int i = 0; i < COUNT; i++) {
        x[i] = (float)(i % 1024);
        y[i] = 2048 - x[i];
    }
    float *device_x = on_device(x), *device_y = on_device(y);
    float milliseconds = compute(2, device_x, device_y);
    check(cudaMemcpy(result, device_y, BYTES, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
    size_t wrong = 0;
    for (unsigned int i = 0; i < COUNT; i++) {
        wrong += result[i] != 2 * x[i] + y[i];
    }

    size_t available = 0, total = 0;
    check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    printf("%-4d %-24s %4d.%-4d %3d.%-4d %5.2f ms   %-7s %6zu of %zu MiB\n", device, properties.name, runtime / 1000,
           runtime % 1000 / 10, driver / 1000, driver % 1000 / 10, (double)milliseconds, wrong == 0 ? "right" : "WRONG",
           available >> 20, total >> 20);
    fflush(stdout);

    while (getchar() != EOF) {
    }
    check(cudaFree(device_x), "cudaFree");
    check(cudaFree(device_y), "cudaFree");
    free(x);
    free(y);
    free(result);
    return wrong == 0 ? 0 : 1;
}
