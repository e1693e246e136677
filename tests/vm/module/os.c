// SPDX-License-Identifier: GPL-2.0-only
/* Processes, by the functions that the real driver has for it: ours are looked for by the same names. */
#include <linux/pid.h>
#include <linux/sched.h>

#include "emulated.h"

noinline void *os_get_pid_info(void)
{
	return get_task_pid(current, PIDTYPE_TGID);
}

noinline void os_put_pid_info(void *pid_info)
{
	put_pid(pid_info);
}

/* The process's number in the caller's namespace. */
noinline u32 os_find_ns_pid(void *pid_info, u32 *ns_pid)
{
	*ns_pid = pid_vnr(pid_info);
	return *ns_pid ? NV_OK : NV_ERR_OBJECT_NOT_FOUND;
}
