# SPDX-License-Identifier: Apache-2.0
"""GpuSharePolicy: what the cluster's administrator says of namespaces and their pods, in one object of the cluster.

Problem. Annotations on namespaces are many, and who may write them is many; annotations on pods are written by whoever
makes pods. Somebody must be able to say once, for many namespaces, what each is worth and what its pods may ask for,
and to see whom that reaches. Two such sayings may meet on one namespace, and it must not depend on the order in which
they were made, or are seen, which of them counts.

Approach. The API server refuses what makes no sense, by the definition (crd.py: OpenAPI and CEL). Of all policies that
name a namespace one is in effect there, whole (precedence.py); within it the first of ``pods`` that matches a pod is
the rule of that pod. Nodes read policies by the same watch as pods (companion/pods) and make weights and limits of
them. Who is reached, and which policies meet, a controller writes into their ``status`` (controller.py; status.py is
pure): one process of the cluster, elected by a Lease.

Precedence, all of it:

1. Of the policies that match a namespace, that with the highest ``priority``.
2. Among those, one that names it (``namespaces.names``) before one that selects it by labels, before one that selects
   all (an empty selector).
3. Among those, the one whose name is first in the alphabet. Those that lose only by this are told of as a conflict.
4. Nothing is added up: what the one in effect does not say comes from no other policy. ``share`` it does not say comes
   from the annotations of the Namespace.
5. ``pods``: the first rule whose selector matches. What it says goes for the pod; an annotation of the pod counts as
   far as the rule's ``max``, and without that as far as what the rule says, or the default, where it says nothing.
   A pod that no rule matches has the defaults, and its annotations do not count beyond them.
   A policy without ``pods`` says nothing of them: they divide their namespace's part by their annotations.

Terms. A *rule* is an entry of ``pods``. *Standing* is what 1. and 2. compare. A *bound* is the most that an annotation
can come to.
"""
