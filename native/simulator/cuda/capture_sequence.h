/* A capture under way, for capture.c and capture_calls.c. Everything is under the graph lock. */
#ifndef GPUSLICE_SIMULATOR_CAPTURE_SEQUENCE_H
#define GPUSLICE_SIMULATOR_CAPTURE_SEQUENCE_H

#include "graph.h"

struct sequence { /* one capture, with all streams that are part of it */
    struct sequence *next;
    uint64_t id;
    struct graph *graph;
    bool into_existing; /* the graph is the caller's, and stays when the capture fails */
    bool invalid;
    CUstreamCaptureMode mode;
    pthread_t thread;
    struct stream *origin;
    struct capture *members;
};

struct capture { /* one stream's part */
    struct capture *next;
    struct sequence *sequence;
    struct stream *stream;
    struct node **nodes; /* what its next node will depend on */
    CUgraphEdgeData *data;
    size_t count;
};

/* Takes the graph over when it succeeds. */
CUresult sequence_begin(struct stream *stream, struct graph *graph, bool existing, CUstreamCaptureMode mode);
/* Ends it and returns its graph, which it no longer owns. */
struct graph *sequence_end(struct sequence *sequence);
/* Ends it, and its graph unless that is the caller's. */
void sequence_throw_away(struct sequence *sequence);

/* What the stream's next node depends on: instead of before, or in addition, leaving out what is there already. */
void capture_set_nodes(struct capture *capture, struct node **nodes, CUgraphEdgeData *data, size_t count);
CUresult capture_add_nodes(struct capture *capture, struct node *const *nodes, const CUgraphEdgeData *data, size_t count);
/* Does a stream of the context capture (one that synchronizes with the legacy stream)? Invalidates the capture, if asked. */
bool capture_in_context(const struct context *context, bool blocking_only, bool invalidate);

#endif
