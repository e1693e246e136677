// SPDX-License-Identifier: GPL-2.0-only
/*
 * The device nodes. The functions have the names of the real driver's, because our probes are put on them: from
 * version 545 on nvidia_*, static; before it (-DFRONTEND) nvidia_frontend_*, global, which call nvidia_* by pointer.
 */
#include <linux/file.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/slab.h>

#include "emulated.h"

unsigned int abi;
module_param(abi, uint, 0444);
MODULE_PARM_DESC(abi, "struct sizes of this driver branch: 525, 535, 550, 570 or 595");
unsigned int gpus = MAX_GPUS;
module_param(gpus, uint, 0444);
unsigned int vram_mib = 16384;
module_param(vram_mib, uint, 0444);
bool id_info = true;
module_param(id_info, bool, 0644);
MODULE_PARM_DESC(id_info, "whether a GPU's instance can be asked for");
bool reversed;
module_param(reversed, bool, 0444);
MODULE_PARM_DESC(reversed, "instances count down from the last minor");
char translate[16] = "none";
module_param_string(translate, translate, sizeof(translate), 0644);
MODULE_PARM_DESC(translate, "which answers carry the caller's pids: none, list, info (and list), all");
char version[64];
module_param_string(version, version, sizeof(version), 0444);

#ifdef FRONTEND
#define DEFAULT_ABI 535
#else
#define DEFAULT_ABI 595
#endif

static int nvidia_open(struct inode *inode, struct file *file)
{
	unsigned int minor = iminor(inode);
	struct nv_file *own;

	if (minor != NV_CTL_MINOR && minor >= gpus)
		return -ENODEV;
	own = kzalloc(sizeof(*own), GFP_KERNEL);
	if (!own)
		return -ENOMEM;
	own->minor = minor;
	file->private_data = own;
	return 0;
}

static int nvidia_close(struct inode *inode, struct file *file)
{
	struct nv_file *own = file->private_data;

	mutex_lock(&books_lock);
	file_gone(own);
	mutex_unlock(&books_lock);
	if (own->ctl)
		fput(own->ctl);
	kfree(own);
	return 0;
}

static __poll_t nvidia_poll(struct file *file, poll_table *table)
{
	return 0;
}

#ifdef FRONTEND

static long nvidia_ioctl(struct inode *inode, struct file *file, unsigned int cmd, unsigned long arg)
{
	return escape(file, _IOC_NR(cmd), _IOC_SIZE(cmd), (void __user *)arg);
}

static int nvidia_mmap(struct file *file, struct vm_area_struct *vma)
{
	return -EINVAL;
}

static struct {
	int (*open)(struct inode *inode, struct file *file);
	int (*close)(struct inode *inode, struct file *file);
	long (*ioctl)(struct inode *inode, struct file *file, unsigned int cmd, unsigned long arg);
	int (*mmap)(struct file *file, struct vm_area_struct *vma);
	__poll_t (*poll)(struct file *file, poll_table *table);
} nv_module = {
	.open = nvidia_open,
	.close = nvidia_close,
	.ioctl = nvidia_ioctl,
	.mmap = nvidia_mmap,
	.poll = nvidia_poll,
};

int nvidia_frontend_open(struct inode *inode, struct file *file);
int nvidia_frontend_close(struct inode *inode, struct file *file);
long nvidia_frontend_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
int nvidia_frontend_mmap(struct file *file, struct vm_area_struct *vma);
__poll_t nvidia_frontend_poll(struct file *file, poll_table *table);

int nvidia_frontend_open(struct inode *inode, struct file *file)
{
	return READ_ONCE(nv_module.open)(inode, file);
}

int nvidia_frontend_close(struct inode *inode, struct file *file)
{
	return READ_ONCE(nv_module.close)(inode, file);
}

long nvidia_frontend_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return READ_ONCE(nv_module.ioctl)(file_inode(file), file, cmd, arg);
}

int nvidia_frontend_mmap(struct file *file, struct vm_area_struct *vma)
{
	return READ_ONCE(nv_module.mmap)(file, vma);
}

__poll_t nvidia_frontend_poll(struct file *file, poll_table *table)
{
	return READ_ONCE(nv_module.poll)(file, table);
}

const struct file_operations nv_fops = {
	.owner = THIS_MODULE,
	.open = nvidia_frontend_open,
	.release = nvidia_frontend_close,
	.unlocked_ioctl = nvidia_frontend_unlocked_ioctl,
	.compat_ioctl = nvidia_frontend_unlocked_ioctl,
	.mmap = nvidia_frontend_mmap,
	.poll = nvidia_frontend_poll,
};

static int nodes_make(void)
{
	return register_chrdev(NV_MAJOR, "nvidia-frontend", &nv_fops);
}

static void nodes_remove(void)
{
	unregister_chrdev(NV_MAJOR, "nvidia-frontend");
}

#else

int nvidia_mmap(struct file *file, struct vm_area_struct *vma);

static long nvidia_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	return escape(file, _IOC_NR(cmd), _IOC_SIZE(cmd), (void __user *)arg);
}

int nvidia_mmap(struct file *file, struct vm_area_struct *vma)
{
	return -EINVAL;
}

const struct file_operations nv_fops = {
	.owner = THIS_MODULE,
	.open = nvidia_open,
	.release = nvidia_close,
	.unlocked_ioctl = nvidia_unlocked_ioctl,
	.compat_ioctl = nvidia_unlocked_ioctl,
	.mmap = nvidia_mmap,
	.poll = nvidia_poll,
};

static int nodes_make(void)
{
	int error = __register_chrdev(NV_MAJOR, 0, 248, "nvidia", &nv_fops);

	if (error < 0)
		return error;
	error = __register_chrdev(NV_MAJOR, NV_CTL_MINOR, 1, "nvidiactl", &nv_fops);
	if (error < 0)
		__unregister_chrdev(NV_MAJOR, 0, 248, "nvidia");
	return error;
}

static void nodes_remove(void)
{
	__unregister_chrdev(NV_MAJOR, NV_CTL_MINOR, 1, "nvidiactl");
	__unregister_chrdev(NV_MAJOR, 0, 248, "nvidia");
}

#endif

static int __init emulated_init(void)
{
	int error;

	if (!abi)
		abi = DEFAULT_ABI;
	if (gpus < 1 || gpus > MAX_GPUS || !vram_mib)
		return -EINVAL;
	if (!version[0])
		snprintf(version, sizeof(version), "%u.45.04", abi);
	error = procfs_make();
	if (error)
		return error;
	error = uvm_make();
	if (error)
		goto no_uvm;
	error = nodes_make();
	if (error < 0)
		goto no_nodes;
	return 0;
no_nodes:
	uvm_remove();
no_uvm:
	procfs_remove();
	return error;
}

static void __exit emulated_exit(void)
{
	nodes_remove();
	uvm_remove();
	procfs_remove();
}

module_init(emulated_init);
module_exit(emulated_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Stand-in for NVIDIA's driver in fairsched's tests; drives nothing");
