/* What the rest of the driver asks about captures (capture.c). */
#ifndef GPUSLICE_SIMULATOR_CAPTURE_H
#define GPUSLICE_SIMULATOR_CAPTURE_H

#include "driver.h"

struct event;

/* Waiting for the stream, or asking whether it is done, while it captures: an error, and the end of the capture. So is
 * work in the legacy stream while a stream that synchronizes with it captures. */
CUresult capture_forbids(struct stream *stream);
CUresult capture_forbids_context(struct context *context);
/* The stream is destroyed: its capture cannot end well. */
void capture_abandon(struct stream *stream);

/* In a capturing stream: the event stands for the stream's last nodes; waiting for such an event makes the waiting stream
 * part of the capture. *handled is false when this has nothing to do with a capture. */
CUresult capture_record_event(struct stream *stream, struct event *event, bool external, bool *handled);
CUresult capture_wait_event(struct stream *stream, struct event *event, bool external, bool *handled);
/* Is the event's last record one in a capture? Forgets it. */
void capture_forget_event(struct event *event);

#endif
