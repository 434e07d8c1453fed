/* What a container sees of its GPU, asked of the CUDA driver that is found in the container.
 *
 *     cuda-test memory          how many bytes the GPU has, and how many of them are free
 *     cuda-test devices         one line per GPU: its number, its bytes and its name
 *     cuda-test hold BYTES      allocates this much, says so, and keeps it until it is ended
 *     cuda-test fill [BYTES]    allocates pieces of this size (default 1 MiB) until the driver refuses; how much it got
 *
 * CUDA_TEST_DEVICE is the number of the GPU, 0 if it is not set. Ends with 1 if the driver refuses, and says how. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int result;
typedef int device;
typedef unsigned long long address;

static void *driver;

static void *function(const char *name) {
    void *found = dlsym(driver, name);
    if (found == NULL) {
        fprintf(stderr, "cuda-test: the driver has no %s\n", name);
        exit(1);
    }
    return found;
}

static void check(const char *what, result code) {
    if (code != 0) {
        fprintf(stderr, "cuda-test: %s failed with %d\n", what, code);
        exit(1);
    }
}

static result allocate(address *place, size_t bytes) {
    result (*call)(address *, size_t) = function("cuMemAlloc_v2");
    return call(place, bytes);
}

static void start(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "cuda-test: there is no CUDA driver here: %s\n", dlerror());
        exit(1);
    }
    result (*initialize)(unsigned) = function("cuInit");
    check("cuInit", initialize(0));
}

static void use_device(void) {
    const char *number = getenv("CUDA_TEST_DEVICE");
    void *context = NULL;
    result (*retain)(void **, device) = function("cuDevicePrimaryCtxRetain");
    result (*use)(void *) = function("cuCtxSetCurrent");
    check("cuDevicePrimaryCtxRetain", retain(&context, number != NULL ? atoi(number) : 0));
    check("cuCtxSetCurrent", use(context));
}

static void show_memory(void) {
    size_t left = 0, total = 0;
    result (*information)(size_t *, size_t *) = function("cuMemGetInfo_v2");
    check("cuMemGetInfo", information(&left, &total));
    printf("total %zu\nfree %zu\n", total, left);
}

static void show_devices(void) {
    int count = 0;
    result (*get_count)(int *) = function("cuDeviceGetCount");
    result (*get_name)(char *, int, device) = function("cuDeviceGetName");
    result (*get_total)(size_t *, device) = function("cuDeviceTotalMem_v2");
    check("cuDeviceGetCount", get_count(&count));
    for (device each = 0; each < count; each++) {
        char name[128] = "";
        size_t total = 0;
        check("cuDeviceGetName", get_name(name, sizeof name, each));
        check("cuDeviceTotalMem", get_total(&total, each));
        printf("%d %zu %s\n", each, total, name);
    }
}

static void hold(size_t bytes) {
    address place = 0;
    check("cuMemAlloc", allocate(&place, bytes));
    printf("holding %zu\n", bytes);
    fflush(stdout);
    for (;;) {
        pause();
    }
}

static void fill(size_t piece) {
    size_t got = 0;
    address place = 0;
    result code;
    while ((code = allocate(&place, piece)) == 0) {
        got += piece;
    }
    printf("got %zu\nrefused with %d\n", got, code);
}

static size_t bytes_of(const char *text) {
    char *end = NULL;
    size_t bytes = strtoull(text, &end, 10);
    if (bytes == 0 || *end != '\0') {
        fprintf(stderr, "cuda-test: %s: say a number of bytes\n", text);
        exit(2);
    }
    return bytes;
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (strcmp(what, "memory") == 0 && count == 2) {
        start();
        use_device();
        show_memory();
    } else if (strcmp(what, "devices") == 0 && count == 2) {
        start();
        show_devices();
    } else if (strcmp(what, "hold") == 0 && count == 3) {
        size_t bytes = bytes_of(arguments[2]);
        start();
        use_device();
        hold(bytes);
    } else if (strcmp(what, "fill") == 0 && count <= 3) {
        size_t piece = count == 3 ? bytes_of(arguments[2]) : 1 << 20;
        start();
        use_device();
        fill(piece);
    } else {
        fprintf(stderr, "usage: cuda-test memory | devices | hold BYTES | fill [BYTES]\n");
        return 2;
    }
    return 0;
}
