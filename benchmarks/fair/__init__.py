# SPDX-License-Identifier: Apache-2.0
"""The fairness harness: scenario files, the stage that plays them, what is measured and how it is shown."""
