# SPDX-License-Identifier: Apache-2.0
"""Runs the DRA driver (fairsched/k8s/dra has the why) beside the daemon, and tells what pods got by claims.

part.py wires it: GPUs come of the daemon's status, their hardware of NVML; sockets and missing files are looked after
once a second, slices in a thread of their own. asked.py (pure) says which pod has how much by which claim.
"""
