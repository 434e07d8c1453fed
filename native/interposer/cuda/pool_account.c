/* Asking the driver about a pool, and charging what it says. */
#include "pool_account.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answered = PTHREAD_COND_INITIALIZER; /* the last question about a closing account */

void accounts_lock(void) {
    pthread_mutex_lock(&lock);
}

void accounts_unlock(void) {
    pthread_mutex_unlock(&lock);
}

void accounts_forget(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    answered = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}

/* ---- questions ---- */

static CUresult ask(const struct pool_account *account, enum pool_question question, uint64_t *rounded) {
    cuuint64_t value = 0;
    CUresult result;
    if (account->pool != NULL) {
        result = REAL(cuMemPoolGetAttribute)(account->pool,
                                             question == POOL_RESERVED ? CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
                                                                       : CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
                                             &value);
    } else {
        result = REAL(cuDeviceGetGraphMemAttribute)(account->device,
                                                    question == POOL_RESERVED ? CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
                                                                              : CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
                                                    &value);
    }
    *rounded = charge_rounded(value);
    return result;
}

struct pool_answer account_ask_and_lock(struct pool_account *account, unsigned int questions) {
    for (;;) {
        struct pool_answer answer = {.reserved = UINT64_MAX, .used = 0};
        CUresult reserved = CUDA_ERROR_UNKNOWN, used = CUDA_ERROR_UNKNOWN;
        if (!account->permanent) {
            atomic_fetch_add(&account->questions, 1); /* before the look at `closing`: account_close does it in reverse */
        }
        uint64_t growths = atomic_load(&account->growths);
        if (!atomic_load(&account->closing)) {
            reserved = questions & POOL_RESERVED ? ask(account, POOL_RESERVED, &answer.reserved) : reserved;
            used = questions & POOL_USED ? ask(account, POOL_USED, &answer.used) : used;
        }
        pthread_mutex_lock(&lock);
        if (!account->permanent && atomic_fetch_sub(&account->questions, 1) == 1 && atomic_load(&account->closing)) {
            pthread_cond_broadcast(&answered);
        }
        if (atomic_load(&account->growths) == growths) {
            answer.reserved = reserved == CUDA_SUCCESS ? answer.reserved : account->charged;
            answer.used = used == CUDA_SUCCESS ? answer.used : 0;
            answer.known = (!(questions & POOL_RESERVED) || reserved == CUDA_SUCCESS) &&
                           (!(questions & POOL_USED) || used == CUDA_SUCCESS);
            answer.gone = reserved == CUDA_ERROR_INVALID_VALUE || used == CUDA_ERROR_INVALID_VALUE;
            return answer;
        }
        pthread_mutex_unlock(&lock); /* another thread's call made the pool grow: ask again */
    }
}

void account_close(struct pool_account *account) {
    pthread_mutex_lock(&lock);
    atomic_store(&account->closing, true);
    while (atomic_load(&account->questions) != 0) {
        pthread_cond_wait(&answered, &lock);
    }
    atomic_fetch_add(&account->questions, 1); /* the place stays taken until account_end_close */
    pthread_mutex_unlock(&lock);
}

void account_end_close(struct pool_account *account, bool destroyed) {
    if (!destroyed) {
        atomic_store(&account->closing, false);
    } else if (account->open && !account->destroyed) {
        account_destroyed(account);
    }
    atomic_fetch_sub(&account->questions, 1);
    pthread_cond_broadcast(&answered);
}

/* ---- charges ---- */

void account_grew(struct pool_account *account) {
    uint64_t growths = atomic_load_explicit(&account->growths, memory_order_relaxed);
    atomic_store_explicit(&account->growths, growths + 1, memory_order_release); /* writers have the lock */
}

bool account_raise(struct pool_account *account, uint64_t bytes) {
    if (bytes != 0 && !session_reserve(account->gpu, SHARED_LANE, bytes)) {
        return false;
    }
    account->charged += bytes;
    account_grew(account);
    return true;
}

bool account_lower(struct pool_account *account, uint64_t bytes) {
    uint64_t least = bytes > account->used ? bytes : account->used;
    bool lower = least < account->charged;
    if (lower) {
        charge_back(account->gpu, SHARED_LANE, account->charged - least);
        account->charged = least;
    }
    if (account->destroyed && account->used == 0) {
        account->open = false;
    }
    return lower;
}

void account_destroyed(struct pool_account *account) {
    account->destroyed = true;
    atomic_store(&account->closing, true);
    account_lower(account, 0);
}

bool account_refresh(struct pool_account *account) {
    struct pool_answer answer = account_ask_and_lock(account, POOL_RESERVED);
    bool changed = account_lower(account, account->destroyed ? 0 : answer.reserved);
    pthread_mutex_unlock(&lock);
    return changed;
}
