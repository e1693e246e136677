# SPDX-License-Identifier: Apache-2.0
"""Takes GPUs back: who holds one, how that ends, whether it has ended, and a record of it all.

Problem: the pid that holds a GPU may be another process's by the time it is signalled, may be frozen by somebody, may
leave children or memory behind; and a week later somebody asks who did that, and why.

Approach: data first. A *listing* joins what the daemon, NVML and /proc say; a *plan* is made of it by pure functions
and says for each process what is done or why not; only then processes are *ended*, through descriptors that were open
before the plan was made; and what the GPU says afterwards is *checked*. Each act is in the audit log before it is done.

| file | what |
|---|---|
| ``facts.py`` | a process as /proc has it |
| ``expression.py`` | filters, of ``ps`` and of ``reclaim``; pure |
| ``holder.py``, ``listing.py``, ``devices.py`` | who holds which GPU; whose device files are open |
| ``vendor.py`` | GPUs of AMD and Intel, which are listed only |
| ``marks.py`` | what is odd about a holder; pure |
| ``protect.py`` | what is never ended |
| ``plan.py`` | who is ended and who is not, with reasons; pure |
| ``pauses.py`` | who stands still, and by whom |
| ``pin.py``, ``end.py`` | signals that reach the process that is meant, or none |
| ``check.py``, ``reset.py`` | whether the GPU is free; a reset of one that is |
| ``session.py`` | all of it in order |
| ``rounds.py``, ``programs.py``, ``ports.py`` | rounds for the guard, with digests of programs and remote ports |
| ``chain.py``, ``audit.py``, ``who.py``, ``witness.py`` | the log, its hashes, the caller, a copy for the journal |

Terms: a *holder* is a process with a context or memory on a GPU. A *target* is a process that is to end. *Left* is one
that was chosen and is not ended, with the reason.
"""
