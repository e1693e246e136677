# SPDX-License-Identifier: Apache-2.0
"""Teams: what Kueue says a team may have becomes its weight on every node, and is held to over minutes.

Problem. Kueue decides who is let in. Once pods of two teams share a GPU, nothing of that says how they divide it.
And weights on single nodes do not add up to a team's part of the cluster by themselves: a team may get less on one
node and nothing back on another.

Approach. A *team* is a ClusterQueue of Kueue. One process of the cluster (controller.py, elected by a Lease)
watches ClusterQueues, LocalQueues and Namespaces, asks Prometheus what each team has got (usage.py), and writes one
annotation on each Namespace that has LocalQueues: ``fairsched.io/queues``, for each queue its team and the team's
weight now (queues.py). The weight is the nominal one times a correction within bounds (law.py, pure). The node's
agent, which reads Namespaces already, makes weights of it for the pods that name one of these queues (placed.py,
pure). Kueue stays the scheduler: nothing is admitted, placed or ended here.

The chain, from the top. A tenant of the agent's file; a GpuSharePolicy; the Namespace's own
``fairsched.io/weight``; shares that its pods asked for; the team's weight; 1. Below it: the pods of the Namespace, by
their own weights. Where a Namespace has queues of several teams the pods of each team are one child of it, with the
shares that they asked for, or that team's weight, and divide that equally. A team with pods of several Namespaces on
one node has its weight once there: each of these Namespaces gets an equal part of it.

A pod chooses among the queues that its Namespace has, by its label, and gets nothing that the Namespace has not.
Without Kueue, or without the controller, there is no annotation, and all is as if this were not here.

Terms. *Nominal*: by Kueue alone. *Correction*: the logarithm of the factor on the nominal weight. *Wanting*: it had
demand within the window.
"""
