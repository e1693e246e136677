// SPDX-License-Identifier: GPL-2.0-only
/* The calls: what is copied in and out, errno or status, counts; and those that concern no object. */
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "escapes.h"

#define MAX_ARG 16384
#define ESC_XFER 0xd3

struct xfer {
	u32 cmd, size;
	u64 address;
};

struct card {
	u8 valid, pad[3];
	u32 domain;
	u8 bus, slot, function, pad2;
	u16 vendor, device;
	u32 gpu_id, irq;
	u64 reg_address, reg_size, fb_address, fb_size;
	u32 minor;
	u8 name[10], pad3[2];
};
static_assert(sizeof(struct card) == 72 && offsetof(struct card, minor) == 56);

struct version_check {
	u32 cmd, reply;
	char text[64];
};

struct call_count calls[256];

static int do_card_info(void *arg, u32 size)
{
	struct card *card = arg;
	u32 i, count = size / sizeof(*card);

	if (size % sizeof(*card) || count < gpus)
		return -EINVAL;
	memset(arg, 0, size);
	for (i = 0; i < gpus; i++, card++)
		*card = (struct card){.valid = 1,
				      .bus = i + 1,
				      .vendor = 0x10de,
				      .device = 0x2330,
				      .gpu_id = gpu_id_of(i),
				      .fb_size = (u64)vram_mib << 20,
				      .minor = i};
	return 0;
}

static int do_register_fd(struct nv_file *file, void *arg, u32 size)
{
	struct nv_file *other;
	struct file *ctl;

	if (size != sizeof(s32) || is_ctl(file) || file->ctl)
		return -EINVAL;
	ctl = fget(*(s32 *)arg);
	if (!ctl)
		return -EINVAL;
	other = ctl->f_op == &nv_fops ? ctl->private_data : NULL;
	if (!other || !is_ctl(other)) {
		fput(ctl);
		return -EINVAL;
	}
	file->ctl = ctl;
	return 0;
}

static int do_version(void *arg, u32 size)
{
	struct version_check *call = arg;
	bool is_same;

	if (size != sizeof(*call))
		return -EINVAL;
	is_same = !strncmp(call->text, version, sizeof(call->text));
	call->reply = is_same;
	strscpy(call->text, version, sizeof(call->text));
	return is_same || call->cmd == '2' ? 0 : -EINVAL;
}

static int dispatch(struct nv_file *file, u32 nr, void *arg, u32 size, u32 *status)
{
	switch (nr) {
	case 0x27:
		return escape_alloc_memory(file, arg, size, status);
	case 0x29:
		return escape_free(file, arg, size, status);
	case 0x2a:
		return escape_control(file, arg, size, status);
	case 0x2b:
		return escape_alloc(file, arg, size, status);
	case 0x34:
		return escape_dup(file, arg, size, status);
	case 0x4a:
		return escape_heap(file, arg, size, status);
	case 200:
		return do_card_info(arg, size);
	case 201:
		return do_register_fd(file, arg, size);
	case 210:
		return do_version(arg, size);
	case 214: /* SYS_PARAMS */
		return size == 8 ? 0 : -EINVAL;
	}
	return -EINVAL;
}

/* One call with its argument in kernel memory; counted. */
static long call_with(struct nv_file *file, u32 nr, u32 size, void __user *user)
{
	void *arg = kvzalloc(max(size, 64u), GFP_KERNEL);
	u32 status = NV_OK;
	long error = 0;

	if (!arg)
		return -ENOMEM;
	if (copy_from_user(arg, user, size))
		error = -EFAULT;
	mutex_lock(&books_lock);
	if (!error)
		error = dispatch(file, nr, arg, size, &status);
	if (error)
		calls[nr & 0xff].errno++;
	else if (status)
		calls[nr & 0xff].refused++;
	else
		calls[nr & 0xff].ok++;
	mutex_unlock(&books_lock);
	if (error != -EFAULT && copy_to_user(user, arg, size))
		error = -EFAULT;
	kvfree(arg);
	return error;
}

long escape(struct file *file, unsigned int nr, unsigned int size, void __user *arg)
{
	struct xfer xfer;

	if (nr != ESC_XFER)
		return call_with(file->private_data, nr, size, arg);
	if (size != sizeof(xfer) || copy_from_user(&xfer, arg, sizeof(xfer)) || xfer.size > MAX_ARG ||
	    xfer.cmd == ESC_XFER || xfer.cmd > 0xff) {
		mutex_lock(&books_lock);
		calls[ESC_XFER].errno++;
		mutex_unlock(&books_lock);
		return -EINVAL;
	}
	return call_with(file->private_data, xfer.cmd, xfer.size, (void __user *)xfer.address);
}
