/* A program of the CUDA runtime, linked with it (-DLINKED) or opening the library that its argument names. Prints the
 * results of: a device, half the limit, too much by cudaMalloc, cudaMallocAsync and cudaMallocManaged, memory that there is,
 * its total, and a free. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

#define HALF ((size_t)16 << 20)

typedef int (*any)();

#ifdef LINKED
int cudaSetDevice(), cudaMalloc(), cudaMallocAsync(), cudaMallocManaged(), cudaMemGetInfo(), cudaFree();
#define CALL(name) name
#else
static void *library;
#define CALL(name) ((any)dlsym(library, #name))
#endif

int main(int argc, char **argv) {
#ifdef LINKED
    (void)argc;
    (void)argv;
#else
    library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (library == NULL) {
        return 3;
    }
#endif
    void *block = NULL, *other = NULL;
    size_t free_bytes = 0, total = 0;
    int device = CALL(cudaSetDevice)(0), half = CALL(cudaMalloc)(&block, HALF);
    int linear = CALL(cudaMalloc)(&other, HALF + 1), async = CALL(cudaMallocAsync)(&other, HALF + 1, NULL);
    int managed = CALL(cudaMallocManaged)(&other, HALF + 1, 1), info = CALL(cudaMemGetInfo)(&free_bytes, &total);
    printf("%d %d %d %d %d %d %zu %d\n", device, half, linear, async, managed, info, total, CALL(cudaFree)(block));
    return free_bytes == HALF ? 0 : 4;
}
