# SPDX-License-Identifier: Apache-2.0
"""The Prometheus exporter: a part of the companion (docs/metrics.md)."""
