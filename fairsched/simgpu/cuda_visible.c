// SPDX-License-Identifier: Apache-2.0
/*
 * Which devices a process sees: CUDA_VISIBLE_DEVICES, and MIG.
 *
 * As NVIDIA's guides have it: an entry is an index of a GPU, a UUID or the beginning of one, `MIG-` and a UUID, or
 * `MIG-GPU-UUID/GPU instance/compute instance`; the first entry that names nothing ends the list. A process sees one MIG
 * instance, the first of those it may see, and then no whole GPU beside it. A GPU in MIG mode is not seen as a whole.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_int.h"
#include "sim_mig.h"

#define MAX_SEEN SIM_MAX_DEVICES
#define NOTHING UINT32_MAX

/* A device that is there now. */
struct seen {
	uint32_t device;
	uint32_t gpu;
	bool is_instance;
	char uuid[48];
	char old_name[64]; /* MIG-GPU-UUID/GPU instance/compute instance */
};

struct node {
	struct seen all[MAX_SEEN];
	uint32_t count;
};

static bool read_spec(const char *dir, uint32_t device, struct sim_spec *spec, uint32_t *gpu_count)
{
	char path[512], name[SIM_NAME_BYTES];
	struct sim_gpu header;
	FILE *f;
	bool is_read;

	sim_file_name(name, device);
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "re");
	if (!f)
		return false;
	is_read = fread(&header, offsetof(struct sim_gpu, start_ns), 1, f) == 1 &&
		  header.magic == SIM_MAGIC && header.abi == SIM_ABI;
	fclose(f);
	*spec = header.spec;
	*gpu_count = header.gpu_count;
	return is_read;
}

bool whole_spec(uint32_t device, struct sim_spec *spec)
{
	uint32_t ignored;

	return read_spec(client.dir, sim_gpu_of(device), spec, &ignored);
}

static struct seen *add(struct node *n, uint32_t device, uint32_t gpu, const char *uuid)
{
	struct seen *one = &n->all[n->count++];

	memset(one, 0, sizeof(*one));
	one->device = device;
	one->gpu = gpu;
	snprintf(one->uuid, sizeof(one->uuid), "%s", uuid);
	return one;
}

static void add_gpu(struct node *n, const char *dir, uint32_t gpu, const char *uuid)
{
	struct sim_spec spec;
	struct mig_file f;
	uint32_t ignored;

	mig_load(dir, gpu, &f);
	if (!f.is_enabled)
		add(n, gpu, gpu, uuid);
	for (uint32_t slot = 0; f.is_enabled && slot < SIM_MAX_INSTANCES; slot++) {
		uint32_t device = sim_instance_index(gpu, slot);
		struct seen *one;

		if (!f.instances[slot].part || !read_spec(dir, device, &spec, &ignored))
			continue;
		one = add(n, device, gpu, spec.uuid);
		one->is_instance = true;
		snprintf(one->old_name, sizeof(one->old_name), "MIG-%s/%u/0", uuid, f.instances[slot].id);
	}
}

/* The GPU, or the first of its instances. */
static uint32_t of_gpu(const struct node *n, uint32_t gpu)
{
	for (uint32_t i = 0; i < n->count; i++)
		if (n->all[i].gpu == gpu)
			return i;
	return NOTHING;
}

/* The only UUID that begins so; `uuids` of whole GPUs, in MIG mode or not. */
static uint32_t by_uuid(const struct node *n, const char *word, char uuids[][48], uint32_t gpus)
{
	uint32_t found = NOTHING, matches = 0;

	for (uint32_t i = 0; i < gpus; i++)
		if (!strncmp(uuids[i], word, strlen(word))) {
			found = of_gpu(n, i);
			matches++;
		}
	for (uint32_t i = 0; i < n->count; i++)
		if (n->all[i].is_instance &&
		    (!strncmp(n->all[i].uuid, word, strlen(word)) || !strcmp(n->all[i].old_name, word))) {
			found = i;
			matches++;
		}
	return matches == 1 ? found : NOTHING;
}

static uint32_t named(const struct node *n, const char *word, char uuids[][48], uint32_t gpus)
{
	char *end;
	unsigned long index;

	if (!strncmp(word, "GPU-", 4) || !strncmp(word, "MIG-", 4))
		return by_uuid(n, word, uuids, gpus);
	index = strtoul(word, &end, 10);
	return end == word || index >= gpus ? NOTHING : of_gpu(n, (uint32_t)index);
}

int visible_devices(const char *dir, struct sim_device *out)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	char uuids[SIM_MAX_GPUS][48], *list, *save = NULL;
	uint32_t gpus = 1, chosen[SIM_MAX_GPUS], count = 0, first = NOTHING;
	struct node n = {.count = 0};

	for (uint32_t i = 0; i < gpus; i++) {
		struct sim_spec spec;
		uint32_t said;

		if (!read_spec(dir, i, &spec, &said))
			return 0;
		gpus = said < SIM_MAX_GPUS ? said : SIM_MAX_GPUS;
		memcpy(uuids[i], spec.uuid, sizeof(uuids[i]));
		add_gpu(&n, dir, i, spec.uuid);
	}
	list = visible ? strdup(visible) : NULL;
	for (char *e = list ? strtok_r(list, ", ", &save) : NULL; e && count < SIM_MAX_GPUS;
	     e = strtok_r(NULL, ", ", &save)) {
		chosen[count] = named(&n, e, uuids, gpus);
		if (chosen[count++] == NOTHING) {
			count--;
			break;
		}
	}
	free(list);
	for (uint32_t i = 0; !visible && i < gpus; i++)
		if ((chosen[count] = of_gpu(&n, i)) != NOTHING)
			count++;
	for (uint32_t i = 0; i < count && chosen[0] != first; i++)
		if (n.all[chosen[i]].is_instance) {
			chosen[0] = first = chosen[i];
			count = 1;
		}
	for (uint32_t i = 0; i < count; i++) {
		memset(&out[i], 0, sizeof(out[i]));
		out[i].gpu = n.all[chosen[i]].device;
	}
	return (int)count;
}
