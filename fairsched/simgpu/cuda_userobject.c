// SPDX-License-Identifier: Apache-2.0
/* Objects of the program that live as long as the graphs that use them: counted references, and a call at the end. */
#include <stdlib.h>

#include "cuda_api.h"

#define MOVE 1u /* the caller's references become the graph's */

struct cu_user_object {
	void *pointer;
	CUhostFn destroy;
	_Atomic uint64_t count;
};

struct cu_user_reference {
	struct cu_user_reference *next;
	struct cu_user_object *object;
	uint64_t count;
};

CUresult sim_cuUserObjectCreate(struct cu_user_object **out, void *pointer, CUhostFn destroy,
				unsigned int count, unsigned int flags)
{
	struct cu_user_object *o;

	(void)flags;
	if (!out || !destroy || !count)
		return CUDA_ERROR_INVALID_VALUE;
	o = calloc(1, sizeof(*o));
	if (!o)
		return CUDA_ERROR_OUT_OF_MEMORY;
	o->pointer = pointer;
	o->destroy = destroy;
	o->count = count;
	*out = o;
	return CUDA_SUCCESS;
}

CUresult sim_cuUserObjectRetain(struct cu_user_object *o, unsigned int count)
{
	if (!o || !count)
		return CUDA_ERROR_INVALID_VALUE;
	atomic_fetch_add(&o->count, count);
	return CUDA_SUCCESS;
}

static void release(struct cu_user_object *o, uint64_t count)
{
	if (atomic_fetch_sub(&o->count, count) != count)
		return;
	o->destroy(o->pointer);
	free(o);
}

CUresult sim_cuUserObjectRelease(struct cu_user_object *o, unsigned int count)
{
	if (!o || !count || count > atomic_load(&o->count))
		return CUDA_ERROR_INVALID_VALUE;
	release(o, count);
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphRetainUserObject(CUgraph g, struct cu_user_object *o, unsigned int count,
				     unsigned int flags)
{
	struct cu_user_reference *r;

	if (!g || !o || !count)
		return CUDA_ERROR_INVALID_VALUE;
	r = calloc(1, sizeof(*r));
	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!(flags & MOVE))
		atomic_fetch_add(&o->count, count);
	r->object = o;
	r->count = count;
	r->next = g->references;
	g->references = r;
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphReleaseUserObject(CUgraph g, struct cu_user_object *o, unsigned int count)
{
	struct cu_user_reference **link, *r;

	if (!g || !o)
		return CUDA_ERROR_INVALID_VALUE;
	for (link = &g->references; *link && ((*link)->object != o || (*link)->count < count);
	     link = &(*link)->next)
		;
	r = *link;
	if (!r)
		return CUDA_ERROR_INVALID_VALUE;
	r->count -= count;
	if (!r->count) {
		*link = r->next;
		free(r);
	}
	release(o, count);
	return CUDA_SUCCESS;
}

CUresult user_objects_share(CUgraph to, CUgraph from)
{
	CUresult rc = CUDA_SUCCESS;

	for (struct cu_user_reference *r = from->references; r && rc == CUDA_SUCCESS; r = r->next)
		rc = sim_cuGraphRetainUserObject(to, r->object, (unsigned int)r->count, 0);
	return rc;
}

void user_objects_drop(CUgraph g)
{
	struct cu_user_reference *r, *next;

	for (r = g->references; r; r = next) {
		next = r->next;
		release(r->object, r->count);
		free(r);
	}
	g->references = NULL;
}
