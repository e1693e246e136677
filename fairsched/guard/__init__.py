# SPDX-License-Identifier: Apache-2.0
"""Judges who holds a GPU over minutes and days: rogue rules, and limits that a guard keeps (pure, but for its tape).

Problem: one look at a GPU says who holds it, not whether it has worked for five minutes without progress, how much it
has had today, or whether it may be there on a Sunday. And whoever writes such a rule wants to know what it would have
done last week before it ends anybody.

Approach: what is seen becomes *rounds* (sample.py), each a moment with a sample for every process on every GPU. Rules
and limits are fed with rounds and keep their own state; time comes with the round, so that a week that was kept
(tape.py) is played in seconds and comes to the same verdicts as the week itself. They return findings with numbers;
whoever acts on one is elsewhere.

| file | what |
|---|---|
| ``sample.py`` | a process, a sample, a round |
| ``hours.py`` | hours of the week in a time zone; windows of maintenance |
| ``tape.py`` | rounds in a file, and back |
| ``allow.py`` | whom no rule may accuse |
| ``thresholds.py`` | the kinds of rogue rules, and what they compare with |
| ``step.py`` | what a process did between two rounds |
| ``judges.py``, ``miner.py``, ``evasion.py`` | the kinds |
| ``finding.py`` | findings, and the verdict that they come to |
| ``rogue.py`` | rogue rules: rounds in, findings out |
| ``rules.py``, ``breach.py`` | limits, and what is said of who is over one |
| ``subjects.py`` | whom a process counts for, and which limits hold for them |
| ``tally.py``, ``ledger.py``, ``booking.py`` | sums of a round, GPU seconds of a day |
| ``measure.py``, ``ladder.py`` | who is over; warnings, grace, end |
| ``choice.py``, ``meant.py`` | whom an end hits, who is named, who may be held |
| ``judge.py`` | limits: rounds in, breaches out |
| ``forecast.py`` | what would have been, and what would come |
| ``report.py``, ``words.py`` | what the guard tells of itself |

Terms: a *round* is one moment of all GPUs. A *finding* is a rule or limit that matched, with evidence.
"""
