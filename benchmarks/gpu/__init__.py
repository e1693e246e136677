# SPDX-License-Identifier: Apache-2.0
"""The checks that need a real GPU: ``python -m benchmarks.gpu``. What they ask, and of whom: docs/gpu-validation.md."""
