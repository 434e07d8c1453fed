/* The test framework: CHECK a condition, end main with `return check_summary();`. Each failure is one line. */
#ifndef GPUSLICE_TESTS_CHECK_H
#define GPUSLICE_TESTS_CHECK_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static atomic_int check_passed, check_failed; /* atomic: tests use threads */

#define CHECK(condition)                                                  \
    do {                                                                  \
        if (condition) {                                                  \
            atomic_fetch_add(&check_passed, 1);                           \
        } else {                                                          \
            atomic_fetch_add(&check_failed, 1);                           \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
        }                                                                 \
    } while (0)

/* That a call gives this result; says which one it gave instead. */
#define CHECK_RESULT(expected, call)                                                                    \
    do {                                                                                                \
        int check_result = (int)(call);                                                                 \
        if (check_result == (int)(expected)) {                                                          \
            atomic_fetch_add(&check_passed, 1);                                                         \
        } else {                                                                                        \
            atomic_fetch_add(&check_failed, 1);                                                         \
            printf("%s:%d: %d and not %d: %s\n", __FILE__, __LINE__, check_result, (int)(expected), #call); \
        }                                                                                               \
    } while (0)

/* For what everything after it needs: ends the program. */
#define CHECK_OR_EXIT(expected, call)                  \
    do {                                               \
        int check_before = atomic_load(&check_failed); \
        CHECK_RESULT(expected, call);                  \
        if (atomic_load(&check_failed) != check_before) { \
            exit(1);                                   \
        }                                              \
    } while (0)

static inline int check_summary(void) {
    printf("%d passed, %d failed\n", atomic_load(&check_passed), atomic_load(&check_failed));
    return atomic_load(&check_failed) != 0;
}

#endif
