// SPDX-License-Identifier: Apache-2.0
/*
 * simengine: the simulated GPUs of one host.
 *
 *   simengine --dir DIR [--root DIR] --gpu key=value,... [--mig 3-3] [--gpu ...]
 *                                         serve until stdin ends or the parent does
 *   simengine --layout                    print the shared layout as JSON
 *
 * DIR is created by the caller and emptied and removed here at the end, so nothing stays behind even
 * if the caller was killed; ROOT, where instances lie, goes with the last of them.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "engine.h"

struct engine engine;

static void print_layout(void)
{
#define FIELD(type, field) printf("\"" #type "." #field "\": %zu,\n", offsetof(struct type, field))
	printf("{\n");
	FIELD(sim_gpu, spec);
	FIELD(sim_gpu, start_ns);
	FIELD(sim_gpu, lock_seq);
	FIELD(sim_gpu, share_from_ns);
	FIELD(sim_gpu, busy_ns);
	FIELD(sim_gpu, truth_count);
	FIELD(sim_gpu, samples);
	FIELD(sim_gpu, residencies);
	FIELD(sim_gpu, truths);
	FIELD(sim_truth, handle);
	FIELD(sim_truth, exec_ns);
	FIELD(sim_truth, peak_vram_bytes);
	FIELD(sim_truth, owner);
	FIELD(sim_truth, seat);
	printf("\"sim_truth\": %zu,\n", sizeof(struct sim_truth));
	printf("\"sim_residency\": %zu,\n", sizeof(struct sim_residency));
	printf("\"sim_gpu\": %zu\n}\n", sizeof(struct sim_gpu));
#undef FIELD
}

static void *map_file(const char *name, size_t bytes, int *fd_out)
{
	char path[512];
	void *map;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", engine.dir, name);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0 || fchmod(fd, 0666) < 0 || ftruncate(fd, (off_t)bytes) < 0)
		return NULL;
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (map == MAP_FAILED)
		return NULL;
	if (fd_out)
		*fd_out = fd;
	else
		close(fd);
	return map;
}

static uint64_t number(const char *text)
{
	return strtoull(text, NULL, 10);
}

static void parse_uuid(struct sim_spec *spec, const char *text)
{
	const char *p = text;
	int n = 0;

	snprintf(spec->uuid, sizeof(spec->uuid), "%s", text);
	if (!strncmp(p, "GPU-", 4))
		p += 4;
	while (*p && n < 16) {
		unsigned int byte;

		if (*p == '-') {
			p++;
			continue;
		}
		if (sscanf(p, "%2x", &byte) != 1)
			break;
		spec->uuid_bytes[n++] = (uint8_t)byte;
		p += 2;
	}
}

static void parse_field(struct sim_spec *spec, const char *key, const char *value)
{
	const struct {
		const char *key;
		uint64_t *field;
	} numbers[] = {
		{"vram_bytes", &spec->vram_bytes},
		{"slice_ns", &spec->slice_ns},
		{"switch_ns", &spec->switch_ns},
		{"copy_bytes_per_s", &spec->copy_bytes_per_s},
		{"copy_latency_ns", &spec->copy_latency_ns},
		{"memset_bytes_per_s", &spec->memset_bytes_per_s},
	};
	const struct {
		const char *key;
		uint32_t *field;
	} small[] = {
		{"sm_count", &spec->sm_count},
		{"slice_spread_ppm", &spec->slice_spread_ppm},
		{"slice_jitter_ppm", &spec->slice_jitter_ppm},
		{"run_to_completion", &spec->run_to_completion},
		{"overlap", &spec->overlap},
		{"is_runlist_ordered", &spec->is_runlist_ordered},
	};

	if (!strcmp(key, "name"))
		snprintf(spec->name, sizeof(spec->name), "%s", value);
	else if (!strcmp(key, "uuid"))
		parse_uuid(spec, value);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!strcmp(key, numbers[i].key))
			*numbers[i].field = number(value);
	for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++)
		if (!strcmp(key, small[i].key))
			*small[i].field = (uint32_t)number(value);
}

static void parse_spec(struct sim_spec *spec, char *text)
{
	char *save = NULL;

	for (char *item = strtok_r(text, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
		char *value = strchr(item, '=');

		if (!value)
			continue;
		*value++ = '\0';
		parse_field(spec, item, value);
	}
}

static bool spec_is_sane(const struct sim_spec *spec)
{
	return spec->slice_ns && spec->copy_bytes_per_s && spec->memset_bytes_per_s &&
	       spec->slice_spread_ppm <= 1000000 && spec->slice_jitter_ppm <= 1000000 && spec->overlap &&
	       spec->overlap <= SIM_MAX_OVERLAP;
}

/* `spec_text`: NULL for the place of a MIG instance, which NVML says what it is. */
static int open_gpu(uint32_t device, char *spec_text)
{
	struct egpu *g = &engine.gpus[device];
	char name[SIM_NAME_BYTES + 4];
	struct sim_gpu *shm;

	sim_file_name(name, device);
	shm = map_file(name, sizeof(*shm), NULL);
	strcat(name, ".ctx");
	g->regions = map_file(name, SIM_MAX_REGIONS * sizeof(struct sim_region), &g->regions_fd);
	if (!shm || !g->regions)
		return -1;
	shm->spec.overlap = 1;
	if (spec_text) {
		parse_spec(&shm->spec, spec_text);
		if (!spec_is_sane(&shm->spec)) {
			errno = EINVAL;
			return -1;
		}
		shm->spec.cc_major = 9;
		shm->spec.pci_bus = device + 1;
	}
	shm->index = device;
	shm->gpu_count = engine.gpu_count;
	shm->abi = SIM_ABI;
	shm->start_ns = sim_now_ns();
	shm->charged_ns = shm->start_ns;
	shm->boot_realtime_offset_ns = sim_realtime_ns() - shm->start_ns;
	shm->magic = SIM_MAGIC;
	g->shm = shm;
	g->index = device;
	g->set = 1;
	g->random_state = device + 1;
	g->next_sample_ns = shm->start_ns + SIM_SAMPLE_NS;
	g->next_util_ns = shm->start_ns + SIM_UTIL_NS;
	g->next_booking_ns = shm->start_ns + SIM_ACCOUNTING_NS;
	return pthread_mutex_init(&g->lock, NULL);
}

static const char *next_word(const char *text, char separator)
{
	const char *end = strchr(text, separator);

	return end ? end + 1 : NULL;
}

/* `layout`: compute slices of each instance, as 3-3-1; empty: MIG mode is on and there is none; NULL: it is off. */
static int split(uint32_t gpu, const char *layout)
{
	struct mig_file f;
	int fd = layout ? mig_open(engine.dir, gpu, &f, true) : -1;

	if (!layout)
		return 0;
	f.is_enabled = 1;
	for (const char *word = layout; word && *word; word = next_word(word, '-')) {
		int profile = 0, slot;

		while (profile < PROFILES && mig_profiles[profile].slices != number(word))
			profile++;
		slot = profile < PROFILES ? mig_add(&f, profile) : -1;
		if (slot < 0) {
			close(fd);
			errno = EINVAL;
			return -1;
		}
		mig_fill(&f, slot, profile, &engine.gpus[gpu].shm->spec,
			 &engine.gpus[sim_instance_index(gpu, (uint32_t)slot)].shm->spec);
	}
	return mig_save(fd, &f) ? 0 : -1;
}

/* A GPU and the places of its instances. */
static int open_whole(uint32_t gpu, char *spec_text, const char *layout)
{
	char name[SIM_NAME_BYTES];

	snprintf(name, sizeof(name), "dev/nvidia%u", gpu);
	if (!map_file(name, 1, NULL) || open_gpu(gpu, spec_text))
		return -1;
	snprintf(name, sizeof(name), "gpu%u.turns", gpu);
	engine.gpus[gpu].turns = map_file(name, sizeof(struct sim_turns), NULL);
	if (!engine.gpus[gpu].turns)
		return -1;
	for (uint32_t slot = 0; slot < SIM_MAX_INSTANCES; slot++)
		if (open_gpu(sim_instance_index(gpu, slot), NULL))
			return -1;
	return split(gpu, layout);
}

static int listen_socket(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/control", engine.dir) >=
	    (int)sizeof(addr.sun_path))
		return -1;
	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
	    chmod(addr.sun_path, 0666) < 0 || listen(fd, 128) < 0)
		return -1;
	return fd;
}

/* Punctual if we may; without the right to it the simulation is as exact, only clients wake later. */
static void be_punctual(void)
{
	struct sched_param rt = {.sched_priority = 10};

	prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
	sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &rt);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path) && errno != ENOENT;
}

/* Whoever waits for this GPU will wait for ever otherwise. */
static void wake_everybody(struct egpu *g)
{
	pthread_mutex_lock(&g->lock);
	for (struct ectx *c = g->contexts; c; c = c->next)
		for (uint32_t i = 0; i < streams_used(c); i++) {
			atomic_fetch_add(&c->region->streams[i].wake_word, 1);
			sim_futex_wake(&c->region->streams[i].wake_word);
		}
	pthread_mutex_unlock(&g->lock);
}

static int serve(void)
{
	int listen_fd = listen_socket();
	int rc;

	if (listen_fd < 0)
		return 1;
	for (uint32_t i = 0; i < engine.gpu_count; i++)
		atomic_store(&engine.gpus[i].shm->accounting_mode, 0);
	for (uint32_t i = 0; i < engine.gpu_count; i++)
		if (!gpu_start(&engine.gpus[i]))
			return 1;
	printf("ready\n");
	fflush(stdout);
	rc = control_run(listen_fd, STDIN_FILENO);
	for (uint32_t i = 0; i < SIM_MAX_DEVICES; i++) {
		if (!engine.gpus[i].is_started)
			continue;
		atomic_store(&engine.gpus[i].shm->dead, 1);
		gpu_kick(&engine.gpus[i]);
		wake_everybody(&engine.gpus[i]);
		pthread_join(engine.gpus[i].thread, NULL);
	}
	return rc;
}

int main(int argc, char **argv)
{
	char *specs[SIM_MAX_GPUS], *layouts[SIM_MAX_GPUS] = {NULL};
	int rc = 1;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--layout")) {
			print_layout();
			return 0;
		}
		if (!strcmp(argv[i], "--dir") && i + 1 < argc)
			engine.dir = argv[++i];
		else if (!strcmp(argv[i], "--root") && i + 1 < argc)
			engine.root = argv[++i];
		else if (!strcmp(argv[i], "--gpu") && i + 1 < argc && engine.gpu_count < SIM_MAX_GPUS)
			specs[engine.gpu_count++] = argv[++i];
		else if (!strcmp(argv[i], "--mig") && i + 1 < argc && engine.gpu_count)
			layouts[engine.gpu_count - 1] = argv[++i];
	}
	if (!engine.dir || !engine.gpu_count) {
		fprintf(stderr, "usage: simengine --dir DIR --gpu key=value,... | --layout\n");
		return 2;
	}
	control_block_signals();
	umask(0);
	rc = 0;
	map_file("dev/nvidiactl", 1, NULL);
	map_file("dev/nvidia-uvm", 1, NULL);
	for (uint32_t i = 0; i < engine.gpu_count && !rc; i++)
		rc = open_whole(i, specs[i], layouts[i]);
	be_punctual();
	if (rc)
		fprintf(stderr, "simengine: cannot set up %s: %s\n", engine.dir, strerror(errno));
	else
		rc = serve();
	nftw(engine.dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
	if (engine.root)
		rmdir(engine.root);
	return rc;
}
