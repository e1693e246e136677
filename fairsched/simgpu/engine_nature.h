/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What distinguishes one nature of GPU from another: how long a slice is, when a kernel may be interrupted,
 * and what those that run at once get of the time. The order of events is engine_sched.c's alone.
 */
#ifndef ENGINE_NATURE_H
#define ENGINE_NATURE_H

#include "engine.h"

/* Of a new context, the number-th, in the circle. */
uint64_t nature_place(const struct egpu *g, uint64_t number);

/* Length of the slice that begins now. Draws a number where slices jitter: call once per slice. */
uint64_t nature_slice_ns(struct egpu *g);

/* Nobody else wanted the GPU: slice after slice, to the first that ends at `wanted_ns` or later. */
void nature_extend_slice(struct egpu *g, uint64_t wanted_ns);

/* How long the command the context is at still runs for its context once the slice is over. */
uint64_t nature_grace_ns(const struct egpu *g, struct ectx *c);

/* What the context gets of the time between the last charge and `at_ns`. */
uint64_t nature_share_ns(const struct egpu *g, const struct ectx *c, uint64_t at_ns);

/* When it will have got `own_ns` more, if those that run stay the same. */
uint64_t nature_reached_ns(const struct egpu *g, const struct ectx *c, uint64_t own_ns);

#endif
