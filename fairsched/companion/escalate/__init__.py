# SPDX-License-Identifier: Apache-2.0
"""Escalation: what is done when fairness stays bad although everybody is held and thawed as they should be.

Problem: a pause shares out one GPU. It cannot make the GPU larger, and a node with too much on it stays slow for
all.

Approach: a ladder of steps, from the least to the most disturbing, climbed slowly and descended slowly, every step
with a dry run, a precondition, a cool-down, an entry in the audit and a way back. It runs in the companion, never
in the daemon. docs/escalation.md is for the people who switch it on.

policy.py    pure: which step when, and why it cannot flap          model.py    its words
reading.py   pure: the signals, from a status                       store.py    what it remembers, on disk
part.py      the companion's part: reads, decides, starts           audit.py    what was done, on disk
steps.py     what a step is, and how one is carried out             ladder.py   the steps of a configuration
quota.py, mig.py, evict.py, command.py   the steps
"""
