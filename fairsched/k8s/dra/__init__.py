# SPDX-License-Identifier: Apache-2.0
"""DRA driver: GPUs of a node as devices of ``resource.k8s.io/v1``, and shares of them as capacity that claims consume.

Problem. A pod that shares a GPU should ask for its part as for any resource: the scheduler finds a GPU with so much
left, the kubelet puts that GPU into the container, and the part is held. Servers differ in whether one device may be
given to several claims. The kubelet and this driver are restarted at any moment, GPUs come and go, and what a claim
says of itself was written by whoever may make one.

Approach. What GPUs offer is made of what the daemon sees (devices.py, pure) and published in ResourceSlices of one
pool, that of the node (slices.py plans, pure; publish.py does it, and looks again whenever somebody has changed them:
a kubelet that starts removes all of its node). Whether the server knows consumable capacity is asked of it with a
creation that it only pretends (its schema names the fields in any case). The kubelet finds our sockets (server.py) and
has claims prepared: an allocation is read and judged (claims.py, pure), recorded, and written down for the container
runtime as a CDI spec of its own (cdi.py); again and again with the same outcome (driver.py). The record of a claim is
one file, so that a damaged one costs one claim; specs without a record are removed at the start, records whose claim
has gone are, too.

Terms. *Offer*: one device of a slice, and the GPU and share behind it. *Share*: hundredths of a GPU's time,
``fairsched.io/share``. *Sharing* is ``capacity`` where claims consume a part of a device, ``devices`` where a GPU is a
fixed number of devices. *Values*: what a claim comes to as keys of the configuration.

Not here: that a share becomes a weight (companion/pods), and the wiring (companion/dra).
Errors: ClaimError for one claim; client.Refused, client.Unreachable of the API server; OSError of files and sockets.
"""

DRIVER = "gpu.fairsched.io"
"""Of this driver, and the domain of its attributes."""
