# SPDX-License-Identifier: Apache-2.0
"""What a call costs that we look at: a launch (probe), an open (gate), an ioctl, a process list (pid view)."""
