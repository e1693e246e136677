# SPDX-License-Identifier: Apache-2.0
"""What others do, in our harness: control laws of other systems on the same cgroups and the same loads.

A rival is a process of its own, so that its CPU can be measured::

    python -m benchmarks.rivals NAME SETUP_JSON

It prints ``ready`` when it controls, runs until SIGTERM or the death of its parent, then lets everybody go.

What is compared is control laws. ``window-sigstop`` and ``token`` know the true use of each tenant, exactly and at
once, which the real ones do not: where they lose, it is not for want of a meter. ``nvml-feedback`` has the
driver's samples, because living with them is what it is about. None of them needs anything in the tenants: where the
original gates launches from within, here a hold is cgroup.freeze (or SIGSTOP, where that is the original's way).

Terms. limit: the part of a GPU above which a cap acts: the quota, or the entitlement where there is no quota.
hold: processes are kept from running. law: the pure part, readings in, actions out.
"""
