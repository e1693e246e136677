/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef FAIRSCHED_STUB_KCONFIG_H
#define FAIRSCHED_STUB_KCONFIG_H
#include <linux/types.h>
#define CONFIG_BPF_SYSCALL 1
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s8 s8;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;
typedef unsigned long size_t;
typedef unsigned long uintptr_t;
/* Registers as the kernel names them: bcc's PT_REGS_* macros use these, the user-space header others. */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs,
		flags, sp, ss;
};
#endif
