# SPDX-License-Identifier: Apache-2.0
"""``fairsched top``: who uses what, live, on a terminal.

Problem: a picture that is redrawn every second must be calm (no flicker, nothing jumps), must survive whatever happens
to the terminal and to the daemon, and must be testable without either.

Approach: four steps that know nothing of each other. ``feed`` asks the daemon in a thread of its own, so that a daemon
that hangs does not make the keys hang; ``rows`` turns a status report into rows and ``view`` a key into the next view,
both pure; ``draw`` makes lines of text of them; ``terminal`` writes a frame with one write, and puts the terminal back.
"""
