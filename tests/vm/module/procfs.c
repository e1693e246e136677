// SPDX-License-Identifier: GPL-2.0-only
/* /proc/driver/nvidia: what the real driver has there, and the books. */
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "emulated.h"

static struct proc_dir_entry *top;

static int show_version(struct seq_file *out, void *unused)
{
	seq_printf(out,
		   "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (tests)\n",
		   version);
	seq_puts(out, "GCC version:  gcc\n");
	return 0;
}

static int show_information(struct seq_file *out, void *unused)
{
	u32 gpu = (u32)(unsigned long)out->private;

	seq_puts(out, "Model: \t\t NVIDIA Emulated GPU\n");
	seq_puts(out, "IRQ:   \t\t 0\n");
	seq_printf(out, "GPU UUID: \t GPU-e0e0e0e0-0000-4000-8000-00000000000%u\n", gpu);
	seq_puts(out, "Video BIOS: \t 00.00.00.00.00\n");
	seq_puts(out, "Bus Type: \t PCIe\n");
	seq_puts(out, "DMA Size: \t 52 bits\n");
	seq_puts(out, "DMA Mask: \t 0xfffffffffffff\n");
	seq_printf(out, "Bus Location: \t 0000:%02x:00.0\n", gpu + 1);
	seq_printf(out, "Device Minor: \t %u\n", gpu);
	seq_printf(out, "GPU Firmware: \t %s\n", version);
	seq_puts(out, "GPU Excluded:\t No\n");
	return 0;
}

static int show_books(struct seq_file *out, void *unused)
{
	u64 vram[MAX_GPUS] = {};
	u32 contexts[MAX_GPUS] = {};
	struct client *client;
	char who[80];
	u32 i;

	mutex_lock(&books_lock);
	list_for_each_entry(client, &clients, all)
	{
		snprintf(who, sizeof(who), "client=%08x pid=%d cgroup=%llu", client->root->handle,
			 pid_nr(client->pid), client->cgroup);
		seq_printf(out, "%s\n", who);
		for (i = 0; i < gpus; i++) {
			vram[i] += client->vram[i];
			contexts[i] += client->contexts[i];
			if (client->has_device & (1u << i))
				seq_printf(out, "use %s gpu=%u contexts=%u vram=%llu\n", who, i,
					   client->contexts[i], client->vram[i]);
		}
	}
	for (i = 0; i < gpus; i++)
		seq_printf(out, "total gpu=%u contexts=%u vram=%llu held=%llu capacity=%llu\n", i,
			   contexts[i], vram[i], held[i], (u64)vram_mib << 20);
	for (i = 0; i < ARRAY_SIZE(calls); i++) {
		if (calls[i].ok || calls[i].refused || calls[i].errno)
			seq_printf(out, "calls nr=0x%02x ok=%llu refused=%llu errno=%llu\n", i, calls[i].ok,
				   calls[i].refused, calls[i].errno);
	}
	mutex_unlock(&books_lock);
	return 0;
}

int procfs_make(void)
{
	struct proc_dir_entry *dir, *one;
	char name[24];
	u32 i;

	top = proc_mkdir("driver/nvidia", NULL);
	if (!top)
		return -ENOMEM;
	dir = proc_mkdir("gpus", top);
	for (i = 0; dir && i < gpus; i++) {
		snprintf(name, sizeof(name), "0000:%02x:00.0", i + 1);
		one = proc_mkdir(name, dir);
		if (one)
			proc_create_single_data("information", 0444, one, show_information,
						(void *)(unsigned long)i);
	}
	proc_create_single("version", 0444, top, show_version);
	proc_create_single("emulated", 0444, top, show_books);
	return 0;
}

void procfs_remove(void)
{
	proc_remove(top);
}
