// SPDX-License-Identifier: GPL-2.0-only
/* nvidia-uvm: its nodes, its dynamic major and its functions' names. Every call it knows succeeds and does nothing. */
#include <linux/cdev.h>
#include <linux/module.h>

#include "emulated.h"

static dev_t uvm_base;
static struct cdev uvm_cdev;

static int uvm_open_entry(struct inode *inode, struct file *file)
{
	return 0;
}

static int uvm_release_entry(struct inode *inode, struct file *file)
{
	return 0;
}

static long uvm_unlocked_ioctl_entry(struct file *file, unsigned int cmd, unsigned long arg)
{
	switch (cmd) {
	case 0x30000001: /* INITIALIZE */
	case 0x30000002: /* DEINITIALIZE */
	case 25 ... 28:  /* GPU address spaces, channels */
	case 33:         /* MAP_EXTERNAL_ALLOCATION */
	case 34:         /* FREE */
	case 37:         /* REGISTER_GPU */
	case 38:         /* UNREGISTER_GPU */
	case 73:         /* CREATE_EXTERNAL_RANGE */
		return 0;
	}
	return -EINVAL;
}

static int uvm_mmap_entry(struct file *file, struct vm_area_struct *vma)
{
	return -EINVAL;
}

static const struct file_operations uvm_fops = {
	.owner = THIS_MODULE,
	.open = uvm_open_entry,
	.release = uvm_release_entry,
	.unlocked_ioctl = uvm_unlocked_ioctl_entry,
	.compat_ioctl = uvm_unlocked_ioctl_entry,
	.mmap = uvm_mmap_entry,
};

int uvm_make(void)
{
	int error = alloc_chrdev_region(&uvm_base, 0, 2, "nvidia-uvm");

	if (error)
		return error;
	cdev_init(&uvm_cdev, &uvm_fops);
	uvm_cdev.owner = THIS_MODULE;
	error = cdev_add(&uvm_cdev, uvm_base, 2);
	if (error)
		unregister_chrdev_region(uvm_base, 2);
	return error;
}

void uvm_remove(void)
{
	cdev_del(&uvm_cdev);
	unregister_chrdev_region(uvm_base, 2);
}
