/* SPDX-License-Identifier: GPL-2.0-only */
/* What probe.py has bcc compile: every atomic the real programs need, in as little text as can be. */
#include "clock.h"

BPF_ARRAY(words, fs_u64, 1);

int on_probe(struct bpf_raw_tracepoint_args *ctx)
{
	int zero = 0;
	fs_u64 *word = words.lookup(&zero), v, n;

	if (!word)
		return 0;
	n = __sync_fetch_and_or(word, 1);
	n += __sync_fetch_and_and(word, ~1ULL);
	n += __sync_lock_test_and_set(word, 0);
	return n + clock_step(word, 1, bpf_ktime_get_ns(), &v, &n);
}
