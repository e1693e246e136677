# SPDX-License-Identifier: Apache-2.0
"""Measurements of fairsched against the exact truth of the simulated GPU. See README.md."""
