# SPDX-License-Identifier: Apache-2.0
"""Lets an assistant look at GPUs, and end processes after a confirmation, by the Model Context Protocol (MCP).

Problem: an assistant does what the text before it says, and part of that text was chosen by tenants: a process may be
called "ignore previous instructions". And a tool that ends processes in one call ends the wrong ones by one mistake.

Approach: tools that read are open. The one that acts is there only with ``--allow-reclaim``, and takes two steps:
``plan_reclaim`` pins processes and returns a plan id; ``confirm_reclaim`` takes the id with the same pids, once, within
two minutes, from the session that made the plan. Nothing is decided by text that comes from a process. Such text leaves
as a JSON value below a key ``untrusted``, without control characters and cut to a length; never inside a sentence of
ours. Plan, act, outcome and refused confirmations are in the audit log, and a log that cannot be written refuses.

| file | what |
|---|---|
| ``arguments.py`` | what a tool takes, checked; which processes that means |
| ``shape.py`` | what a tool returns: numbers, and what is untrusted, apart |
| ``plans.py`` | plans that wait for their confirmation |
| ``host.py`` | what the tools need of this host |
| ``tools.py`` | the tools, without the protocol |
| ``server.py`` | the protocol: the official SDK, stdio, one thread for what blocks |
| ``http.py`` | HTTP on loopback: token, hosts, sessions |

Terms: a *session* is one client's connection: a process with stdio, an ``Mcp-Session-Id`` with HTTP. A *claim* is what
a client says of itself.

Source: the specification of MCP, modelcontextprotocol.io; the SDK ``mcp`` on PyPI (docs/decisions/0030).
"""
