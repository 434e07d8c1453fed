/* A CUDA program against NVIDIA's runtime and nothing else: it does not know that its GPUs are simulated.
 *
 * usage: saxpy DEVICE
 *
 * Copies two vectors to the device and back, checks them, prints one line, and keeps its memory until its standard input
 * ends, so that others can see it at work. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT (16u << 20)
#define BYTES (COUNT * sizeof(float))

static void check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "error: %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

static float *vector(float first, float step) {
    float *values = malloc(BYTES);
    if (values == NULL) {
        perror("error: malloc");
        exit(1);
    }
    for (size_t i = 0; i < COUNT; i++) values[i] = first + step * (float)(i % 1024);
    return values;
}

static float *on_device(const float *values) {
    void *device = NULL;
    check(cudaMalloc(&device, BYTES), "cudaMalloc");
    check(cudaMemcpy(device, values, BYTES, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
    return device;
}

static size_t differences(const float *expected, const float *device) {
    float *actual = vector(0, 0);
    check(cudaMemcpy(actual, device, BYTES, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
    size_t count = 0;
    for (size_t i = 0; i < COUNT; i++) count += actual[i] != expected[i];
    free(actual);
    return count;
}

int main(int argc, char **argv) {
    int device = argc > 1 ? atoi(argv[1]) : 0;
    int devices = 0, runtime = 0, driver = 0;
    check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    check(cudaSetDevice(device), "cudaSetDevice");
    struct cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");

    float *x = vector(0, 1), *y = vector(2048, -1);
    float *device_x = on_device(x), *device_y = on_device(y);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    size_t wrong = differences(x, device_x) + differences(y, device_y);

    size_t available = 0, total = 0;
    check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    printf("%d of %d  %-24s runtime %d.%d  driver %d.%d  %zu MiB there and back: %s  %zu of %zu MiB free\n", device,
           devices, properties.name, runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10,
           2 * BYTES >> 20, wrong == 0 ? "right" : "WRONG", available >> 20, total >> 20);
    fflush(stdout);

    while (getchar() != EOF) continue;
    check(cudaFree(device_x), "cudaFree");
    check(cudaFree(device_y), "cudaFree");
    free(x);
    free(y);
    return wrong == 0 ? 0 : 1;
}
