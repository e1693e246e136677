// SPDX-License-Identifier: Apache-2.0
/*
 * The calls of libc that a reader of the trace makes. Those on another file go on to the kernel.
 *
 * A file is ours when it is DIR/dev/nvidiactl under whatever name, and this process opened it. When the node has gone
 * from there, the driver has: ENODEV. Not seen are files opened by openat2 or fopen, and copies by dup: they are the
 * plain files they are. Only x86-64: off_t has 64 bits under either name of a call.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "trace_int.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_FD 65536
#define NODE "nvidiactl"
#define NVIDIA_MAJOR 195
#define CONTROL_MINOR 255

#define RM_CONTROL _IOWR('F', 0x2a, struct rm_control)
#define RM_ALLOC _IOWR('F', 0x2b, struct rm_alloc)
#define RM_MAP _IOWR('F', 0x4e, struct rm_map)

static struct file *_Atomic files[MAX_FD];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Of this process: what a child inherits, or what shares its memory until it execs, is not. */
static struct file *file_of(int fd)
{
	struct file *f = fd >= 0 && fd < MAX_FD ? atomic_load(&files[fd]) : NULL;

	return f && f->owner == getpid() ? f : NULL;
}

/* The node, now; 0 = there is none. */
static ino_t node_now(void)
{
	const char *dir = getenv("FAIRSCHED_SIM_DIR");
	char path[512];
	struct stat st;

	if (!dir || snprintf(path, sizeof(path), "%s/dev/" NODE, dir) >= (int)sizeof(path))
		return 0;
	return syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) ? 0 : st.st_ino;
}

static bool is_same_file(int fd, ino_t node)
{
	struct stat st;

	return !syscall(SYS_fstat, fd, &st) && S_ISREG(st.st_mode) && st.st_ino == node;
}

static void forget(int fd)
{
	struct file *f = file_of(fd);

	if (!f)
		return;
	pthread_mutex_lock(&lock);
	atomic_store(&files[fd], NULL);
	objects_free(f);
	free(f);
	pthread_mutex_unlock(&lock);
}

static bool is_there(void)
{
	bool found;

	pthread_mutex_lock(&lock);
	found = gpus_open(getenv("FAIRSCHED_SIM_DIR"));
	pthread_mutex_unlock(&lock);
	return found;
}

static int adopt(int fd, const char *path)
{
	const char *slash = strrchr(path, '/');
	struct file *f;
	ino_t node;

	forget(fd); /* closed behind our back */
	if (fd < 0 || fd >= MAX_FD || strcmp(slash ? slash + 1 : path, NODE))
		return fd;
	node = node_now();
	if (!node || !is_same_file(fd, node) || !is_there())
		return fd;
	f = calloc(1, sizeof(*f));
	if (!f)
		return fd;
	f->owner = getpid();
	f->node = node;
	f->mapped = -1;
	atomic_store(&files[fd], f);
	return fd;
}

static int open_any(int dir, const char *path, int flags, mode_t mode)
{
	int fd = (int)syscall(SYS_openat, dir, path, flags, mode);

	if (fd >= 0) {
		int kept = errno;

		adopt(fd, path);
		errno = kept;
	}
	return fd;
}

/* The fourth of open's arguments is there with some flags only. */
#define OPEN(name)                                                                 \
	EXPORT int name(const char *path, int flags, ...)                          \
	{                                                                          \
		va_list rest;                                                      \
		mode_t mode;                                                       \
                                                                                   \
		va_start(rest, flags);                                             \
		mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
		va_end(rest);                                                      \
		return open_any(AT_FDCWD, path, flags, mode);                      \
	}

#define OPENAT(name)                                                               \
	EXPORT int name(int dir, const char *path, int flags, ...)                 \
	{                                                                          \
		va_list rest;                                                      \
		mode_t mode;                                                       \
                                                                                   \
		va_start(rest, flags);                                             \
		mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
		va_end(rest);                                                      \
		return open_any(dir, path, flags, mode);                           \
	}

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

EXPORT int close(int fd)
{
	forget(fd);
	return (int)syscall(SYS_close, fd);
}

static int fstat_any(int fd, struct stat *st)
{
	int rc = (int)syscall(SYS_fstat, fd, st);

	if (!rc && file_of(fd)) {
		st->st_mode = S_IFCHR | (st->st_mode & ~(mode_t)S_IFMT);
		st->st_rdev = makedev(NVIDIA_MAJOR, CONTROL_MINOR);
		st->st_size = 0;
	}
	return rc;
}

EXPORT int fstat(int fd, struct stat *st)
{
	return fstat_any(fd, st);
}

EXPORT int fstat64(int fd, struct stat64 *st)
{
	_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "x86-64");
	return fstat_any(fd, (struct stat *)st);
}

/* True: answered, with a status in the call. */
static bool answer(struct file *f, unsigned long request, void *call)
{
	struct rm_alloc *alloc = call;
	struct rm_control *control = call;
	struct rm_map *map = call;

	switch (request) {
	case RM_ALLOC:
		alloc->status = object_alloc(f, alloc);
		return true;
	case RM_CONTROL:
		control->status = object_control(f, control);
		return true;
	case RM_MAP:
		map->status = object_map(f, file_of(map->fd), map);
		return true;
	default:
		return false;
	}
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	va_list rest;
	void *argument;
	struct file *f = file_of(fd);
	bool is_answered;

	va_start(rest, request);
	argument = va_arg(rest, void *);
	va_end(rest);
	if (!f || !is_same_file(fd, f->node))
		return (int)syscall(SYS_ioctl, fd, request, argument);
	if (node_now() != f->node) {
		errno = ENODEV;
		return -1;
	}
	pthread_mutex_lock(&lock);
	is_answered = answer(f, (uint32_t)request, argument);
	pthread_mutex_unlock(&lock);
	if (!is_answered)
		errno = EINVAL;
	return is_answered ? 0 : -1;
}

static void *mmap_any(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
	struct file *f = flags & MAP_ANONYMOUS ? NULL : file_of(fd);
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	if (f && (f->mapped < 0 || offset || length > (f->mapped_bytes + page - 1) / page * page)) {
		errno = EINVAL;
		return MAP_FAILED;
	}
	/* Of a descriptor that reads only, the kernel lets nobody write: now, or by mprotect. */
	return (void *)syscall(SYS_mmap, address, length, protection, flags, f ? f->mapped : fd, offset);
}

EXPORT void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
	return mmap_any(address, length, protection, flags, fd, offset);
}

EXPORT void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset)
{
	return mmap_any(address, length, protection, flags, fd, offset);
}
