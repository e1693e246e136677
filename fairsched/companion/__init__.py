# SPDX-License-Identifier: Apache-2.0
"""The companion: everything that looks outward, in a process of its own beside the daemon.

Problem: exporting metrics, reading tenants' token counters, keeping a history and calling Kubernetes all wait for
somebody else, and in Python whoever computes in one thread keeps the others of its process waiting. The daemon's loop
freezes and thaws people's processes; nothing of that may run beside it.

Approach: one child process, ``python -m fairsched.companion``. It is a client of the control socket like any other:
it asks for the status, hands it to its parts, and tells the daemon what they found. It may die, hang or be killed at
any moment without any effect on scheduling; the daemon starts another. It ends when the daemon ends, however that
ends, because its standard input is a pipe that only the daemon holds open.

keeper.py   the daemon's end: starts it, starts it again, ends it
part.py     what a part is, what it is given and what it may say
__main__.py the process: which parts there are, and their round
"""
