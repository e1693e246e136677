// SPDX-License-Identifier: Apache-2.0
/*
 * The same loads on a real GPU, with kernels that time themselves (benchmarks/gpu/timed.ptx): each notes from when to
 * when it ran, by the GPU's clock, and where it was interrupted. The notes of a context are a ring in memory that the
 * GPU writes and the program saves when it ends: {magic, capacity, marks, unused, then per mark {before, after} of the
 * host's clock} and {from, to} per note. The first notes are those of the marks: kernels of no length, each launched
 * and waited for between two looks at the host's clock.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "simload.h"

#define NOTES (1u << 18) /* as in the module */
#define MARKS 32
#define MAGIC 0x676f6c757067ull

struct gpu_log {
	uint64_t magic;
	uint64_t capacity;
	uint64_t marks;
	uint64_t unused;
	uint64_t marked_ns[MARKS][2];
	struct note {
		uint64_t from_ns;
		uint64_t to_ns;
	} notes[NOTES];
};

/* An empty module means: the simulated GPU, which is told how long a kernel takes. */
const char *image_of(const struct options *o)
{
	static char *image;
	long bytes;
	FILE *f;

	if (!o->image_path)
		return "";
	if (image)
		return image;
	f = fopen(o->image_path, "rb");
	if (!f || fseek(f, 0, SEEK_END) || (bytes = ftell(f)) < 0) {
		perror(o->image_path);
		exit(1);
	}
	rewind(f);
	image = calloc(1, (size_t)bytes + 1);
	if (!image || fread(image, 1, (size_t)bytes, f) != (size_t)bytes) {
		perror(o->image_path);
		exit(1);
	}
	fclose(f);
	return image;
}

void gpu_log_open(struct lane *l)
{
	void *memory;

	if (!l->o->gpu_log_path)
		return;
	must(l->cu->host_alloc(&memory, sizeof(*l->gpu_log), 0), "cuMemHostAlloc");
	memset(memory, 0, sizeof(*l->gpu_log));
	l->gpu_log = memory;
	l->gpu_log->magic = MAGIC;
	l->gpu_log->capacity = NOTES;
	for (int i = 0; i < MARKS; i++)
		gpu_log_mark(l);
}

void gpu_log_mark(struct lane *l)
{
	uint64_t *marked_ns = l->gpu_log->marked_ns[l->gpu_log->marks++];

	marked_ns[0] = now_ns();
	launch_kernel(l, l->streams[0], 0);
	must(l->cu->stream_sync(l->streams[0]), "cuStreamSynchronize");
	marked_ns[1] = now_ns();
}

static void save(const struct lane *l)
{
	const char *bytes = (const char *)l->gpu_log;
	size_t left = sizeof(*l->gpu_log);
	char path[4096];
	int fd;

	must(l->cu->ctx_set(l->ctx), "cuCtxSetCurrent");
	sync_step((struct lane *)l);
	snprintf(path, sizeof(path), "%s.%d", l->o->gpu_log_path, l->index);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	while (fd >= 0 && left) {
		ssize_t n = write(fd, bytes, left);

		if (n <= 0)
			break;
		bytes += n;
		left -= (size_t)n;
	}
	if (fd < 0 || left || close(fd)) {
		perror(path);
		exit(1);
	}
}

void gpu_log_write(const struct lane *lanes)
{
	for (int i = 0; lanes[0].o->gpu_log_path && i < lanes[0].o->contexts; i++)
		save(&lanes[i]);
}
