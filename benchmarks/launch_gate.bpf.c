/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An experiment, no part of the daemon: counts the launches of one cgroup, and stops a process before the launch that
 * exceeds the budget. See launch_gate.py.
 */
#define SIGSTOP 19

struct gate {
	unsigned long long cgroup_id;
	unsigned long long budget; /* launches; 0 = count only */
	unsigned long long launches;
	unsigned long long stops;
	unsigned long long refused;
};

BPF_ARRAY(gates, struct gate, 1);

int on_launch(struct pt_regs *ctx)
{
	int zero = 0;
	struct gate *gate = gates.lookup(&zero);

	if (!gate || bpf_get_current_cgroup_id() != gate->cgroup_id)
		return 0;
	__sync_fetch_and_add(&gate->launches, 1);
	/* Not the value this addition made: two at once may both pass, or both stop. One launch per process at most. */
	if (!gate->budget || gate->launches <= gate->budget)
		return 0;
	if (bpf_send_signal(SIGSTOP))
		__sync_fetch_and_add(&gate->refused, 1);
	else
		__sync_fetch_and_add(&gate->stops, 1);
	return 0;
}
