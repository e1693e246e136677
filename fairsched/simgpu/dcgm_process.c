// SPDX-License-Identifier: Apache-2.0
/* What DCGM tells of one process: NVML's accounting under another name. */
#include <string.h>
#include <unistd.h>

#include "dcgm_int.h"
#include "nvml_int.h"

#define MAX_OTHERS 16

struct summary64 {
	long long least, most, average;
};

struct summary32 {
	int least, most, average;
};

struct pid_gpu {
	unsigned int gpu;
	long long energy_mj;
	struct summary64 pcie_rx, pcie_tx;
	long long pcie_replays;
	long long start_us, end_us;
	struct {
		unsigned int pid;
		double sm_pct, memory_pct;
	} use;
	struct summary32 sm_pct, memory_pct;
	unsigned int ecc_single, ecc_double;
	struct summary32 memory_clock, sm_clock;
	int xid_count;
	long long xids_us[10];
	int compute_count;
	unsigned int compute_pids[MAX_OTHERS];
	int graphics_count;
	unsigned int graphics_pids[MAX_OTHERS];
	long long most_memory_bytes;
	long long violations_us[6];
	unsigned int health, incidents;
	struct {
		unsigned int system, health;
	} systems[10];
};

struct pid_info {
	unsigned int version, pid, unused;
	int gpu_count;
	struct pid_gpu summary;
	struct pid_gpu gpus[DCGM_MAX_NUM_DEVICES];
};

/* The driver's accounting mode is switched on, which takes root. */
DCGM_API dcgmReturn dcgmWatchPidFields(dcgmHandle handle, uintptr_t group, long long period_us, double keep_s,
				       int keep_samples)
{
	struct connection *c;
	uint32_t gpus;
	dcgmReturn rc;

	(void)keep_s;
	(void)keep_samples;
	if (period_us < 1000)
		return DCGM_ST_BADPARAM;
	c = connection_use(handle, &rc);
	if (!c)
		return rc;
	if (!group_gpus(c, group, &gpus))
		return connection_done(DCGM_ST_BADPARAM);
	for (unsigned int i = 0; i < dcgm.gpu_count; i++) {
		if (!(gpus & 1u << i) || atomic_load(&dcgm.gpus[i]->accounting_mode))
			continue;
		if (geteuid())
			return connection_done(DCGM_ST_REQUIRES_ROOT);
		atomic_store(&dcgm.gpus[i]->accounting_mode, 1);
	}
	c->has_pid_watch = true;
	return connection_done(DCGM_ST_OK);
}

static void unknown(struct pid_gpu *g)
{
	const struct summary64 none64 = {DCGM_INT64_BLANK, DCGM_INT64_BLANK, DCGM_INT64_BLANK};
	const struct summary32 none32 = {DCGM_INT32_BLANK, DCGM_INT32_BLANK, DCGM_INT32_BLANK};

	memset(g, 0, sizeof(*g));
	g->energy_mj = g->pcie_replays = DCGM_INT64_BLANK;
	g->pcie_rx = g->pcie_tx = none64;
	g->sm_pct = g->memory_pct = g->memory_clock = g->sm_clock = none32;
}

/* A mean over the life of the process, as NVML's accounting has it. */
static void tell(struct pid_gpu *g, unsigned int gpu, const struct process_use *p)
{
	uint64_t until_ns = p->is_running ? sim_now_ns() : p->ended_ns;
	uint64_t samples = (until_ns - p->created_ns) / SIM_SAMPLE_NS;

	unknown(g);
	g->gpu = gpu;
	g->start_us = (long long)p->wall_start_us;
	g->end_us = p->is_running ? 0 : (long long)(p->wall_start_us + (p->ended_ns - p->created_ns) / 1000);
	g->use.pid = p->pid;
	g->use.sm_pct = samples ? (double)p->sample_util_pct_sum / (double)samples : 0;
	g->use.memory_pct = g->use.sm_pct / 2;
	g->most_memory_bytes = (long long)p->peak_vram_bytes;
}

DCGM_API dcgmReturn dcgmGetPidInfo(dcgmHandle handle, uintptr_t group, struct pid_info *info)
{
	struct process_use use[MAX_PROCESSES];
	struct connection *c;
	uint32_t gpus;
	dcgmReturn rc;

	if (!info || !info->pid)
		return DCGM_ST_BADPARAM;
	if (info->version != VERSION_OF(sizeof(*info), 2))
		return DCGM_ST_VER_MISMATCH;
	c = connection_use(handle, &rc);
	if (!c)
		return rc;
	if (!group_gpus(c, group, &gpus))
		return connection_done(DCGM_ST_BADPARAM);
	info->gpu_count = 0;
	unknown(&info->summary);
	for (unsigned int i = 0; c->has_pid_watch && i < dcgm.gpu_count; i++) {
		unsigned int count =
			gpus & 1u << i ? read_processes(dcgm.gpus[i], use, MAX_PROCESSES, false) : 0;

		for (unsigned int n = 0; n < count; n++)
			if (use[n].pid == info->pid)
				tell(&info->gpus[info->gpu_count++], i, &use[n]);
	}
	if (!info->gpu_count)
		return connection_done(DCGM_ST_NO_DATA);
	if (info->gpu_count == 1)
		info->summary = info->gpus[0];
	return connection_done(DCGM_ST_OK);
}

_Static_assert(sizeof(struct pid_gpu) == 536 && sizeof(struct pid_info) == 17704, "as in DCGM");
