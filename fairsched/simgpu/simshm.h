/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory the engine, the stand-in libraries and the Python reader share.
 *
 * One file per GPU, `gpuN`, and per place of a MIG instance of it, `gpuN.mK`, holds what every process may
 * read (struct sim_gpu); a second, sparse one, `gpuN.ctx`, holds one struct sim_region per live context: its
 * queues, event stamps and a little pinned memory. A client writes commands and moves `tail`; only the engine moves `done`.
 * So a queue keeps draining while its owner is frozen, as it does on the hardware. A third one, `gpuN.turns`, is the log
 * of context switches that a GPU's firmware keeps.
 *
 * All times are nanoseconds of CLOCK_MONOTONIC. layout.py mirrors struct sim_gpu; a unit test
 * compares it with `simengine --layout`.
 */
#ifndef SIMSHM_H
#define SIMSHM_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#define SIM_MAGIC 0x55504753u
#define SIM_ABI 6u
#define SIM_MAX_GPUS 16
#define SIM_MAX_INSTANCES 7 /* of MIG, on one GPU */
#define SIM_MAX_DEVICES (SIM_MAX_GPUS * (1 + SIM_MAX_INSTANCES))
#define SIM_NAME_BYTES 32
#define SIM_MAX_TRUTHS 4096
#define SIM_MAX_REGIONS 256
#define SIM_MAX_STREAMS 128
#define SIM_RING 1024u
#define SIM_MAX_EVENTS 4096
#define SIM_PIN_BYTES (256u << 10)
#define SIM_MAX_RESIDENCIES 8192
#define SIM_MAX_TURNS 32768
#define SIM_MAX_SAMPLES 72 /* depth of the driver's ring: 10 s of 139 ms */
#define SIM_SAMPLE_NS 139000000ull
#define SIM_ACCOUNTING_NS 1000000000ull /* from one callback of the accounting mode to the next */
#define SIM_UTIL_NS 166666667ull
#define SIM_MAX_OVERLAP 16
#define SIM_MIN_SLICE_NS 10000ull
#define SIM_MAX_KERNEL_NS (1ull << 50)
#define SIM_NEVER UINT64_MAX

enum sim_op {
	SIM_KERNEL = 1,     /* amount = GPU time in ns; count = kernels in it (a graph has many) */
	SIM_COPY = 2,       /* amount = bytes */
	SIM_EVENT = 3,      /* target = event slot, seq = generation */
	SIM_WAIT_EVENT = 4, /* target = gpu, region, slot packed by sim_pack_event, seq = generation */
	SIM_HOST_FUNC = 5,  /* user[0](user[1]) is called by a thread of the owner */
	SIM_WRITE32 = 6,    /* target = offset in pin[], amount = value */
	SIM_WAIT32 = 7,     /* as above; seq = comparison (0 >=, 1 ==, 2 &, 3 nor) */
	SIM_MARK = 8,       /* nothing: a barrier's carrier */
};

/* `sleep` of a GPU: what a submitter must do. Values >= SIM_SLICED name the running region. */
enum {
	SIM_AWAKE = 0,
	SIM_ASLEEP = 1,
	SIM_SLICED = 2
};

enum sim_phase {
	SIM_IDLE = 0,
	SIM_SWITCH = 1,
	SIM_EXEC = 2
};

enum {
	SIM_STREAM_NONBLOCKING = 1,
	SIM_STREAM_LEGACY = 2
};

struct sim_cmd {
	uint32_t op;
	uint32_t count;
	uint64_t stamp_ns; /* when the client wrote it: it cannot start earlier */
	uint64_t order;    /* place among all commands of the context, for the legacy stream's barrier */
	uint64_t amount;
	uint64_t target;
	uint64_t seq;
	uint64_t user[2];
};

struct sim_stream {
	/* Written by the client. */
	_Atomic uint64_t tail;
	_Atomic uint32_t flags;
	uint32_t pad0;
	_Atomic uint64_t host_done; /* seq of the last host function that returned */
	uint64_t pad1[5];
	/* Written by the engine. */
	_Atomic uint64_t done;
	_Atomic uint64_t done_ns;
	_Atomic uint64_t host_ready; /* seq of the host function the owner should call now */
	_Atomic uint64_t lookahead;  /* the engine sleeps until this seq is done */
	/* Written by both: the lowest seq somebody sleeps for (0 = nobody), and the futex. */
	_Atomic uint64_t wait_target;
	_Atomic uint32_t wake_word;
	uint32_t pad2[5];
	struct sim_cmd ring[SIM_RING];
};

struct sim_event {
	_Atomic uint64_t done_gen;
	_Atomic uint64_t time_ns;
};

struct sim_region {
	_Atomic uint32_t used_streams; /* streams [0, used) have been used */
	_Atomic uint32_t host_word;    /* futex: a host function is ready somewhere */
	uint64_t pad[7];
	struct sim_event events[SIM_MAX_EVENTS];
	uint8_t pin[SIM_PIN_BYTES];
	struct sim_stream streams[SIM_MAX_STREAMS];
};

/* What a GPU is. From slice_spread_ppm to overlap it is its nature, see engine_nature.h. */
struct sim_spec {
	char name[64];
	char uuid[48];
	uint8_t uuid_bytes[16];
	uint64_t vram_bytes;
	uint64_t slice_ns;
	uint64_t switch_ns;
	uint64_t copy_bytes_per_s;
	uint64_t copy_latency_ns;
	uint64_t memset_bytes_per_s;
	uint32_t sm_count;
	uint32_t cc_major;
	uint32_t cc_minor;
	uint32_t pci_bus;
	uint32_t slice_spread_ppm;
	uint32_t slice_jitter_ppm;
	uint32_t run_to_completion;
	uint32_t overlap; /* contexts that run at once */
	uint32_t
		slices; /* of a MIG instance: it has so many SIM_MAX_INSTANCES-ths of the speed; 0 = a whole GPU */
	uint32_t is_runlist_ordered; /* turns in order of creation */
	uint64_t
		born_ns; /* when the MIG instance in this place was made: older contexts were another one's */
};

struct sim_truth {
	uint64_t id; /* 1, 2, ... per GPU in order of creation; 0 = empty slot */
	uint32_t pid;
	uint32_t region;
	uint64_t handle; /* the CUcontext of the owner */
	uint64_t created_ns;
	uint64_t ended_ns; /* 0 while alive */
	uint64_t exec_ns;
	uint64_t switch_ns;
	uint64_t copy_ns;
	uint64_t wait_ns;          /* runnable, neither running nor being switched to */
	uint64_t waiting_since_ns; /* 0, or the start of the wait that goes on */
	uint64_t kernels;
	uint64_t vram_bytes;
	uint64_t peak_vram_bytes;
	uint64_t wall_start_us;       /* CLOCK_REALTIME, for NVML accounting */
	uint64_t sample_count;        /* of NVML samples that found it on the GPU ... */
	uint64_t sample_util_pct_sum; /* ... what they said ... */
	uint64_t booked_util_pct_sum; /* ... and how much of that is in NVML's account of it */
	uint64_t booked_from;         /* sim_gpu.booked_samples when it came, and when it ended */
	uint64_t booked_until;
	uint32_t owner; /* FAIRSCHED_SIM_OWNER of the process; 0 = it has none */
	uint32_t seat;  /* 1 ... share_count while it executes, else 0 */
	uint32_t is_mps_client;
	uint32_t pad;
};

struct sim_residency {
	uint64_t id;
	uint64_t start_ns;
	uint64_t end_ns;
};

/* One context left the engine, one came. Channel 0: none did. */
struct sim_turn {
	uint64_t left_ns;
	uint64_t came_ns;
	uint32_t left_pid;
	uint32_t left_channel;
	uint32_t came_pid;
	uint32_t came_channel;
};

/* What `gpuN.turns` holds. Written by the engine: the entry, then the count. */
struct sim_turns {
	_Atomic uint64_t count; /* so far; the last SIM_MAX_TURNS of them are in the ring */
	uint64_t pad[3];
	struct sim_turn ring[SIM_MAX_TURNS];
};

struct sim_sample {
	uint64_t time_us; /* CLOCK_REALTIME, as NVML stamps them */
	uint32_t pid;     /* occupant at the instant of the sample; 0 = nobody */
	uint32_t util_pct;
};

struct sim_gpu {
	uint32_t magic;
	uint32_t abi;
	uint32_t index;
	uint32_t gpu_count;
	struct sim_spec spec;
	uint64_t start_ns;
	uint64_t boot_realtime_offset_ns; /* add to CLOCK_MONOTONIC for CLOCK_REALTIME */
	_Atomic uint32_t dead;            /* the engine has ended */
	_Atomic uint32_t bell;            /* futex the engine thread sleeps on */
	_Atomic uint32_t sleep;
	_Atomic uint32_t accounting_mode;
	_Atomic uint64_t accounting_on_ns;      /* since when; whoever came earlier is in no account */
	_Atomic uint64_t accounting_cleared_ns; /* whoever ended earlier was cleared away */
	_Atomic uint64_t next_order;
	/* Below: written by the engine between two increments of lock_seq (odd = being written). */
	_Atomic uint32_t lock_seq;
	uint32_t phase;
	uint64_t charged_ns;    /* accounts are complete up to here ... */
	uint64_t limit_ns;      /* ... and `phase` lasts at least until here */
	uint64_t current_id;    /* whose slice it is; 0 in SIM_IDLE */
	uint64_t share_from_ns; /* since then the nanoseconds go to the seats in turn */
	uint64_t share_count;
	uint64_t copy_id;
	uint64_t copy_from_ns;
	uint64_t copy_end_ns;
	uint64_t busy_ns;
	uint64_t switch_ns;
	uint64_t copy_ns;
	uint64_t switches;
	uint64_t vram_used_bytes;
	uint64_t util_pct;
	uint64_t residency_count;
	uint64_t sample_count;
	uint64_t booked_samples; /* of these, those that the accounting callback has seen */
	uint64_t truth_count;    /* ids given so far */
	struct sim_sample samples[SIM_MAX_SAMPLES];
	struct sim_residency residencies[SIM_MAX_RESIDENCIES];
	struct sim_truth truths[SIM_MAX_TRUTHS];
};

/* Control socket: one SOCK_SEQPACKET request, one reply. Rare calls only; launches never come here. */
enum sim_rpc {
	SIM_RPC_HELLO = 1,       /* a = 1: kill me when the host goes; reply a = pid as the engine sees it */
	SIM_RPC_CTX_CREATE = 2,  /* gpu, region = 1: of an MPS client, a = handle; reply a = region, b = id */
	SIM_RPC_CTX_DESTROY = 3, /* gpu, region */
	SIM_RPC_ALLOC = 4,       /* gpu, region, a = bytes */
	SIM_RPC_FREE = 5,
	SIM_RPC_SYNC = 6,  /* bring every GPU's accounts up to now */
	SIM_RPC_LEASH = 7, /* a = pid: kill it when the host goes */
};

enum {
	SIM_OK = 0,
	SIM_NO_MEMORY = 1,
	SIM_BAD_REQUEST = 2
};

struct sim_request {
	uint32_t op;
	uint32_t gpu;
	uint32_t region;
	uint32_t owner; /* of the client, for SIM_RPC_CTX_CREATE */
	uint64_t a;
};

struct sim_reply {
	uint32_t status;
	uint32_t pad;
	uint64_t a;
	uint64_t b;
};

/* Engines are numbered: whole GPUs first, then the places of the instances of each. */
static inline uint32_t sim_instance_index(uint32_t gpu, uint32_t slot)
{
	return SIM_MAX_GPUS + gpu * SIM_MAX_INSTANCES + slot;
}

/* The GPU that a device is, or is an instance of. */
static inline uint32_t sim_gpu_of(uint32_t device)
{
	return device < SIM_MAX_GPUS ? device : (device - SIM_MAX_GPUS) / SIM_MAX_INSTANCES;
}

static inline void sim_file_name(char name[SIM_NAME_BYTES], uint32_t device)
{
	if (device < SIM_MAX_GPUS)
		snprintf(name, SIM_NAME_BYTES, "gpu%u", device);
	else
		snprintf(name, SIM_NAME_BYTES, "gpu%u.m%u", sim_gpu_of(device),
			 (device - SIM_MAX_GPUS) % SIM_MAX_INSTANCES);
}

static inline uint64_t sim_pack_event(uint32_t gpu, uint32_t region, uint32_t slot)
{
	return (uint64_t)gpu << 48 | (uint64_t)region << 32 | slot;
}

_Static_assert(sizeof(struct sim_cmd) == 64, "one command is one cache line");
_Static_assert(sizeof(struct sim_truth) == 168, "mirrored in layout.py");
_Static_assert(sizeof(_Atomic uint64_t) == 8, "shared words are plain words");

#endif
