# SPDX-License-Identifier: Apache-2.0
"""A device plugin of the kubelet: ``fairsched.io/gpu-share``, a hundred of them to a GPU.

Problem. A cluster's scheduler counts whole things. A pod that needs a quarter of a GPU must be able to say so where the
scheduler adds it up, get the GPU that its quarter is of, and weigh there as much as it asked for.

Approach. Each GPU and MIG instance is offered to the kubelet as so many devices, its shares, whose names are the GPU's
UUID and a number (shares.py, pure). The kubelet asks which of the free ones to give (choose.py, pure): few GPUs for one
container, GPUs filled up or evenly used. What was given is injected by CDI (cdi.py). A GPU that is unwell, gone, or of
a driver that does not answer makes its shares Unhealthy (inventory.py), and nothing else: pods that run are let alone.
The plugin keeps nothing: what is given to whom is the kubelet's to know, over restarts of either. It is asked back
(placed.py) and written to a file that the agent reads, so that a pod weighs as much on each GPU as it has shares of it
(fairsched/companion/pods).

The parts turn in one loop (loop.py) that never waits for NVML, and calls of the kubelet are answered from what the loop
has last seen (service.py). link.py registers, and does it again when the kubelet was started anew.

Terms. A *share* is one device of the kubelet. An *offer* is a GPU with what is to be known of it now.
Run it: ``python3 -m fairsched.k8s.plugin --help``. Needs the extra ``k8s``.
"""
