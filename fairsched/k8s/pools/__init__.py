# SPDX-License-Identifier: Apache-2.0
"""Node pools from one file: labels, taints, quotas, limits, priorities, sharing and MIG layouts of GPU nodes.

Problem. What makes a cluster's GPU nodes usable (labels to select them by, taints that keep others away, quotas,
limits, priorities, how the device plugin shares a GPU, which MIG layout) is set by hand, node by node. Nobody knows
afterwards what was set by whom, and taking it back takes away what others have set.

Approach. One file says what is wanted (schema.py). desired.py makes objects of it and of what each node has
(detect.py). plan.py compares them with what is there and gives steps; it is pure. carry.py takes the steps, with
server-side apply under a manager of its own: the API server keeps who owns which field. What another manager owns is a
conflict, which names it, and is never overridden unless asked for. backup.py keeps what was there before, and plans the
way back: only what is still ours is put back, everything else is left alone and said.

Terms. A *field* is a path into an object whose value is a leaf (lists are leaves). *Ours* is what the manager
``fairsched-pools`` owns. A *pool* is a set of nodes; a node is in the first pool of the file that it fits.

Errors: errors.ConfigError for the file; client.Refused and client.Unreachable.
"""
