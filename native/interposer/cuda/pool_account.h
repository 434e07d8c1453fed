/* What a pool of the driver's is charged for: a memory pool, or the pool that a device has for graphs.
 *
 * An account is charged for what the driver says that the pool holds, and never for less than `used`. The driver is asked
 * while no lock is held, because its calls may block: an answer counts only if the account did not grow meanwhile. */
#ifndef GPUSLICE_POOL_ACCOUNT_H
#define GPUSLICE_POOL_ACCOUNT_H

#include "charge.h"

#pragma GCC visibility push(hidden) /* calls among ourselves need no detour through the loader */

struct pool_account {
    CUmemoryPool pool;             /* NULL for a device's pool for graphs */
    CUdevice device;               /* whose pool for graphs it is */
    uint32_t gpu;                  /* NO_GPU: host memory, not charged */
    bool open;                     /* else the place is free */
    bool permanent;                /* a pool of a device's own: the program cannot destroy it */
    bool destroyed;                /* the driver has no such pool any more: the account waits for its last block */
    uint64_t used;                 /* what the program has of it, and what calls in flight may add */
    uint64_t charged;
    _Atomic bool closing;          /* the pool is being destroyed or is: nothing asks the driver about it */
    _Atomic unsigned int questions; /* to the driver, in flight */
    _Atomic uint64_t growths;      /* how often `charged` was raised, or the place was taken */
};

enum pool_question { POOL_RESERVED = 1, POOL_USED = 2 };

struct pool_answer {
    uint64_t reserved, used; /* rounded; an answer that the driver does not give is the present charge, and 0 */
    bool known;              /* the driver answered every question */
    bool gone;               /* the driver knows no such pool */
};

/* One lock for all accounts. It is held for arithmetic, never for a call to the driver. */
void accounts_lock(void);
void accounts_unlock(void);

/* Asks the driver without the lock, and returns with the lock held: the answer is not older than the last growth. */
struct pool_answer account_ask_and_lock(struct pool_account *account, unsigned int questions);

/* Under the lock. Answers to questions that were asked before do not count. */
void account_grew(struct pool_account *account);
/* Under the lock. Raises what is charged by that much if the session has room. */
bool account_raise(struct pool_account *account, uint64_t bytes);
/* Under the lock. Lowers what is charged to that or to what is used; true if that changed anything. */
bool account_lower(struct pool_account *account, uint64_t bytes);
/* Lowers what is charged to what the pool holds; true if that changed anything. */
bool account_refresh(struct pool_account *account);

/* Under the lock. The driver has no such pool any more. */
void account_destroyed(struct pool_account *account);

/* Waits until no question about the pool is in flight, and keeps new ones away: a question about a pool that is gone
 * could crash the driver. */
void account_close(struct pool_account *account);
/* Under the lock. The pool was destroyed, or stays. */
void account_end_close(struct pool_account *account, bool destroyed);

/* In a forked child: the lock is free, whatever the parent's threads were doing. */
void accounts_forget(void);

#pragma GCC visibility pop

#endif
