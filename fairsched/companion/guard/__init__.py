# SPDX-License-Identifier: Apache-2.0
"""The guard's hands: rounds are collected and kept, judged, and what limits say is told, and done in mode act."""
