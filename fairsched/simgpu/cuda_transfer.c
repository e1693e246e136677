// SPDX-License-Identifier: Apache-2.0
/* Copies and memsets: a command of the engine's each, and the bytes. */
#include <string.h>

#include "cuda_api.h"

#define MEMSET_LATENCY_NS 2000ull

enum { /* CUmemorytype */
	TYPE_HOST = 1,
	TYPE_DEVICE = 2,
	TYPE_UNIFIED = 4
};

struct copy_end_2d { /* half of CUDA_MEMCPY2D */
	size_t x_bytes, y;
	unsigned int type;
	uint64_t host, device, array;
	size_t pitch;
};

struct copy_2d {
	struct copy_end_2d src, dst;
	size_t width, height;
};

struct copy_end_3d { /* half of CUDA_MEMCPY3D */
	size_t x_bytes, y, z, lod;
	unsigned int type;
	uint64_t host, device, array, reserved;
	size_t pitch, height;
};

struct copy_3d {
	struct copy_end_3d src, dst;
	size_t width, height, depth;
};

_Static_assert(sizeof(struct copy_2d) == 128, "CUDA_MEMCPY2D");
_Static_assert(sizeof(struct copy_3d) == 200, "CUDA_MEMCPY3D");

static CUresult submit(CUstream s, uint32_t op, uint64_t amount, bool wait)
{
	struct sim_cmd cmd = {.op = op, .count = 1, .amount = amount};
	uint64_t seq;
	CUresult rc = queue_submit(s, &cmd, &seq);

	return rc == CUDA_SUCCESS && wait ? queue_wait(s, seq) : rc;
}

/* What is recorded into a graph neither takes time nor moves anything: a graph is its kernels. */
static CUresult transfer(CUstream handle, const struct copy_shape *shape, bool wait)
{
	uint64_t bytes = shape->width * shape->rows * shape->planes;
	bool moves = false;
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS || s->capture)
		return rc;
	rc = bytes ? contents_check(shape, &moves) : CUDA_SUCCESS;
	if (rc != CUDA_SUCCESS)
		return rc;
	if (moves)
		contents_move(shape);
	return submit(s, SIM_COPY, bytes, wait);
}

CUresult memory_copy(CUstream s, uint64_t dst, uint64_t src, uint64_t bytes, bool wait)
{
	struct copy_shape line = {.dst = dst, .src = src, .width = bytes, .rows = 1, .planes = 1};

	return transfer(s, &line, wait);
}

CUresult memory_prefetch(CUstream s, uint64_t bytes)
{
	return memory_copy(s, 0, 0, bytes, false);
}

CUresult memory_set(CUstream handle, const struct set_shape *shape, bool wait)
{
	uint64_t bytes = shape->width * shape->element * shape->rows;
	double rate;
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS || s->capture)
		return rc;
	rc = contents_fill(shape);
	if (rc != CUDA_SUCCESS)
		return rc;
	rate = (double)s->ctx->shm->spec.memset_bytes_per_s;
	return submit(s, SIM_KERNEL, MEMSET_LATENCY_NS + (uint64_t)((double)bytes * 1e9 / rate), wait);
}

/* Where an end with an address begins; false for arrays, which are not there. */
static bool base_of(unsigned int type, uint64_t host, uint64_t device, uint64_t *out)
{
	*out = type == TYPE_HOST ? host : device;
	return type == TYPE_HOST || type == TYPE_DEVICE || type == TYPE_UNIFIED;
}

CUresult memory_copy_2d(CUstream s, const void *params, bool wait)
{
	struct copy_2d c;
	struct copy_shape shape = {.planes = 1};

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&c, params, sizeof(c));
	if (!base_of(c.src.type, c.src.host, c.src.device, &shape.src) ||
	    !base_of(c.dst.type, c.dst.host, c.dst.device, &shape.dst))
		return CUDA_ERROR_NOT_SUPPORTED;
	shape.src_pitch = c.src.pitch ? c.src.pitch : c.width;
	shape.dst_pitch = c.dst.pitch ? c.dst.pitch : c.width;
	if (c.height > 1 && (shape.src_pitch < c.width || shape.dst_pitch < c.width))
		return CUDA_ERROR_INVALID_VALUE;
	if (shape.src)
		shape.src += c.src.y * shape.src_pitch + c.src.x_bytes;
	if (shape.dst)
		shape.dst += c.dst.y * shape.dst_pitch + c.dst.x_bytes;
	shape.width = c.width;
	shape.rows = c.height;
	return transfer(s, &shape, wait);
}

static uint64_t begin_of(const struct copy_end_3d *e, uint64_t base, uint64_t pitch, uint64_t plane)
{
	return base ? base + e->z * plane + e->y * pitch + e->x_bytes : 0;
}

CUresult memory_copy_3d(CUstream s, const void *params, bool wait)
{
	struct copy_shape shape;
	uint64_t src, dst;
	struct copy_3d c;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&c, params, sizeof(c));
	if (!base_of(c.src.type, c.src.host, c.src.device, &src) ||
	    !base_of(c.dst.type, c.dst.host, c.dst.device, &dst))
		return CUDA_ERROR_NOT_SUPPORTED;
	shape.src_pitch = c.src.pitch ? c.src.pitch : c.width;
	shape.dst_pitch = c.dst.pitch ? c.dst.pitch : c.width;
	shape.src_plane = shape.src_pitch * (c.src.height ? c.src.height : c.height);
	shape.dst_plane = shape.dst_pitch * (c.dst.height ? c.dst.height : c.height);
	shape.src = begin_of(&c.src, src, shape.src_pitch, shape.src_plane);
	shape.dst = begin_of(&c.dst, dst, shape.dst_pitch, shape.dst_plane);
	shape.width = c.width;
	shape.rows = c.height;
	shape.planes = c.depth;
	return transfer(s, &shape, wait);
}
