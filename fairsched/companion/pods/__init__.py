# SPDX-License-Identifier: Apache-2.0
"""Pods are tenants: what labels and annotations of pods and namespaces say of shares becomes tenants of this node.

Problem. In a cluster nobody edits a file on each node. Who runs a pod knows what it is worth beside the team's other
pods; who runs the cluster says what a team is worth. The API server that tells is sometimes away, and a daemon must not
wait for it, forget because of it, or be told by a pod that it is worth more than its team.

Approach. A namespace is a tenant and a pod is a child of it: ``ml/llama-0``. Weights nest, so that a pod divides its
namespace's part and nothing else, whatever it says of itself; the namespace's own weight, and its ``min``, are on the
Namespace, which who may make pods usually may not change. What the file says goes before: a namespace whose pods are a
tenant's of the file is left to the file.

The companion lists and watches the pods of its node and all namespaces (k8s/watch.py), makes tenants of them
(policy.py, pure), leaves out what the configuration in force refuses, and tells the daemon (part.py). The daemon keeps
what it was told in ``state_dir/pods.yaml`` (config/podlayer.py): it starts with that, API server or not. While the API
server is away nothing changes, and the status says since when. Watches go on from the last version that was seen,
bookmarks included, and begin anew where the server has forgotten it (410).

Keys, each ``fairsched.io/KEY``; an annotation goes before a label. On pods: ``weight`` (within the namespace),
``class``, ``quota``, ``min`` (out of the namespace's), ``vram-limit``, ``tenant`` (pods of one namespace that share a
child). On namespaces: ``weight``, ``quota``, ``min``, ``vram-limit``, and ``class``, the default of its pods. What
cannot be understood keeps the default; a warning of ``fairsched status`` and an Event on the pod say why.

**Shares.** A pod that asks for ``fairsched.io/gpu-share`` weighs as much as it asks for, and its namespace as much as
all its pods here ask for, on each GPU those of that GPU (shares.py). What somebody says goes before: an annotation
before a label before what was asked for before 1, of pods and of namespaces alike. So a pod's annotation still divides
its namespace's part and no other: what its namespace weighs does not follow it. Whoever has a ResourceQuota for shares
has a limit on what a namespace can weigh.

**Teams** of Kueue (k8s/teams) say what a namespace weighs whose pods asked for no shares, and which pods of it are one
child. Sources of both kinds tell policy.py beside the objects, which stay as the API server has them.

Policies of the cluster (k8s/policies) go before annotations of namespaces, and bound those of pods (bounds.py), where
``kubernetes.watch_policies`` says that there may be any.

Who is a tenant: a namespace that says something, or one of whose pods on this node does, or asks for a GPU.

Terms. A *layer* is the tenants that come of pods, by namespace, as the configuration would have them. A *complaint* is
what cannot be understood, and of whom.
"""
