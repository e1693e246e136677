// SPDX-License-Identifier: Apache-2.0
/*
 * The step log: a file made by the reader, {magic, capacity, count, is_ready} as u64, then a ring of
 * {end_ns u64, tokens double, latency_ns u64}. `count` only grows; an entry is written before it is
 * counted, so a reader that looks at `count` first sees whole entries.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "simload.h"

struct entry {
	uint64_t end_ns;
	double tokens;
	uint64_t latency_ns;
};

static struct {
	uint64_t magic;
	uint64_t capacity;
	_Atomic uint64_t count;
	_Atomic uint64_t is_ready;
	struct entry entries[];
} * file;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

bool log_open(const char *path)
{
	struct stat st;
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st) < 0)
		return false;
	file = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (file == MAP_FAILED)
		file = NULL;
	return file && sizeof(*file) + file->capacity * sizeof(struct entry) <= (size_t)st.st_size;
}

void log_ready(void)
{
	if (file)
		atomic_store(&file->is_ready, 1);
}

void log_step(uint64_t end_ns, double tokens, uint64_t latency_ns)
{
	uint64_t n;

	if (!file)
		return;
	pthread_mutex_lock(&lock);
	n = atomic_load(&file->count);
	file->entries[n % file->capacity] = (struct entry){end_ns, tokens, latency_ns};
	atomic_store(&file->count, n + 1);
	pthread_mutex_unlock(&lock);
}
