/* Events: what event.c, deferred.c and capture.c know of them. */
#ifndef GPUSLICE_SIMULATOR_EVENT_H
#define GPUSLICE_SIMULATOR_EVENT_H

#include "driver.h"

/* Where an event stands. Records are told apart by tickets, which grow over the whole process: the newest that was asked
 * for and the newest that was done differ while the record is deferred. An interprocess event has this in shared memory. */
struct event_state {
    _Atomic uint64_t issued, executed; /* tickets; 0: never */
    _Atomic uint64_t point;            /* device time of the executed record */
    _Atomic uint64_t recorded_ns;      /* wall-clock time of the executed record */
    _Atomic uint64_t completed_ns;     /* wall-clock time at which the point was reached, once known */
    uint32_t domain;
    _Atomic uint32_t slot; /* of the process that recorded it, plus 1 */
};

struct event {
    struct object object;
    struct context *context;
    unsigned int flags;
    struct event_state own, *state;
    int file; /* of an interprocess event that was made here; -1: none */
    /* The event was last recorded in a capture: that capture's id, and the nodes it stands for. Under the graph lock. */
    _Atomic uint64_t captured;
    struct node **captured_nodes;
    size_t captured_count;
};

/* One record of an event, as a wait that is asked for now refers to it: a later record must not change what it waits for. */
struct event_mark {
    uint64_t ticket; /* 0: never recorded */
    uint64_t point;  /* UINT64_MAX: the record is deferred, and its point not known yet */
};

uint64_t event_issue(struct event *event); /* the ticket for a record that is asked for now */
struct event_mark event_mark(const struct event *event);
void event_record(struct event *event, struct stream *stream, uint64_t ticket);
/* Has that record been done and its point been reached? */
bool event_passed(struct event *event, struct event_mark mark);
/* Is the stream's order enough to wait for it (a point of the same device's time, recorded by this process)? */
bool event_is_point(const struct event *event, const struct stream *stream, struct event_mark mark);

#endif
