# SPDX-License-Identifier: Apache-2.0
"""fairsched: weighted fair shares of GPU time for cgroup v2 tenants."""

__version__ = "0.1.0"
