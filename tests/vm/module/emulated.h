/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A stand-in for NVIDIA's driver, for tests alone: the device nodes, the function names and the calls by which
 * programs get contexts and memory, and books of who has what, which our programs' figures are compared with.
 * It drives nothing.
 *
 * One mutex covers everything: it is here to be right.
 */
#ifndef EMULATED_H
#define EMULATED_H

#include <linux/cgroup.h>
#include <linux/fs.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/types.h>
#include <linux/xarray.h>

#define NV_MAJOR 195
#define NV_CTL_MINOR 255
#define MAX_GPUS 4
#define MAX_CLIENTS 4096
#define MAX_OBJECTS 65536
#define PAGE_4K 4096ULL

enum nv_status {
	NV_OK = 0x00,
	NV_ERR_INSERT_DUPLICATE_NAME = 0x19,
	NV_ERR_INSUFFICIENT_RESOURCES = 0x1a,
	NV_ERR_INVALID_ADDRESS = 0x1e,
	NV_ERR_INVALID_ARGUMENT = 0x1f,
	NV_ERR_INVALID_CLASS = 0x22,
	NV_ERR_INVALID_CLIENT = 0x23,
	NV_ERR_INVALID_DEVICE = 0x26,
	NV_ERR_INVALID_FUNCTION = 0x2a,
	NV_ERR_INVALID_OBJECT_HANDLE = 0x33,
	NV_ERR_INVALID_OBJECT_PARENT = 0x36,
	NV_ERR_INVALID_PARAM_STRUCT = 0x3a,
	NV_ERR_NO_MEMORY = 0x51,
	NV_ERR_NOT_SUPPORTED = 0x56,
	NV_ERR_OBJECT_NOT_FOUND = 0x57,
};

enum kind {
	KIND_CLIENT,
	KIND_DEVICE,
	KIND_SUBDEVICE,
	KIND_GROUP, /* channel group (TSG) */
	KIND_CHANNEL,
	KIND_COMPUTE,
	KIND_MEMORY,
	KIND_OTHER,
};

/* A piece of VRAM: there until the last handle on it goes. */
struct backing {
	u32 gpu;
	u32 handles;
	u64 bytes;
};

struct object {
	struct client *client;
	struct object *parent;
	struct list_head below; /* of parent->children */
	struct list_head children;
	struct backing *backing; /* of memory in VRAM */
	u64 charged;             /* VRAM bytes in the books: 0 for duplicates */
	u32 handle;
	u32 class;
	u32 kind;
	u32 gpu;
	u32 computes; /* of a group, or a channel that is its own: compute objects below */
};

struct nv_file;

struct client {
	struct list_head all;
	struct nv_file *file;
	struct object *root;
	struct xarray objects;
	struct pid *pid; /* of the creator's process */
	u64 cgroup;
	u32 count;
	u32 next_handle;
	u32 has_device; /* one bit per GPU */
	u32 contexts[MAX_GPUS];
	u64 vram[MAX_GPUS];
};

/* What an open file is: private_data. */
struct nv_file {
	int minor;
	struct file *ctl; /* of a GPU's file: the control file it was tied to (REGISTER_FD) */
};

struct call_count {
	u64 ok;
	u64 refused;
	u64 errno;
};

extern struct mutex books_lock;
extern struct list_head clients;
extern struct call_count calls[256];
extern u64 held[MAX_GPUS]; /* VRAM that any handle keeps */
extern unsigned int abi, gpus, vram_mib;
extern bool id_info, reversed;
extern char translate[16];
extern char version[64];
extern const struct file_operations nv_fops;

/* objects.c: all under books_lock */
struct client *client_of(u32 handle, const struct nv_file *file);
struct object *object_of(struct client *client, u32 handle);
u32 client_new(const struct nv_file *file, u32 *handle);
u32 object_new(struct client *client, u32 parent, u32 class, u32 gpu, u32 *handle);
u32 memory_new(struct client *client, u32 parent, u32 class, u64 bytes, bool is_vram, u32 *handle);
u32 object_dup(struct client *client, u32 parent, u32 source_client, u32 source, u32 *handle);
u32 object_free(struct client *client, u32 handle);
void file_gone(struct nv_file *file);
u64 vram_free(u32 gpu);
int kind_of(u32 class);

/* escapes.c */
long escape(struct file *file, unsigned int nr, unsigned int size, void __user *arg);

/* lists.c */
u32 list_control(struct object *object, u32 cmd, void *params, u32 size);

/* os.c: names that our programs may look for */
void *os_get_pid_info(void);
void os_put_pid_info(void *pid_info);
u32 os_find_ns_pid(void *pid_info, u32 *ns_pid);

/* procfs.c */
int procfs_make(void);
void procfs_remove(void);

/* uvm.c */
int uvm_make(void);
void uvm_remove(void);

#endif
