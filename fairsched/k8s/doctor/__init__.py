# SPDX-License-Identifier: Apache-2.0
"""Why GPU pods of a cluster wait, and what is wrong with its GPU nodes.

Problem. A pod that does not start says so in one line of its scheduler, which adds up nodes and does not say what to
do; where a quota or a RuntimeClass refused it there is no pod at all, only an event of whoever wanted to make it.

Approach. cluster.py holds what the API server has (read.py asks it, once). nodes.py judges each GPU node: is a device
plugin registered, are its devices healthy, is the agent there and ready. pods.py reckons for each pod that waits, and
for each node, what keeps it from there, as the scheduler does for GPUs, taints, labels and affinity; starts.py reads
what the kubelet and the makers of pods say in events. All of it is pure; each finding has a remedy.

Terms. A *row* is one finding: a code that stays, where, what, and what to do. *Own reckoning* is said beside the
scheduler's own words, never in place of them: it knows no volumes, topology or other plugins.

Errors: client.Refused and client.Unreachable of what cannot be done without; the rest is a row that says so.
"""
