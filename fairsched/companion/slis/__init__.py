# SPDX-License-Identifier: Apache-2.0
"""The three golden service level indicators: was it fair, and how long did work wait?

Problem. An operator must be told in three numbers whether sharing works, and the number that says "fair" must not be
the scheduler's own opinion of itself.

Approach. Everything here runs in the companion and looks back over one window (``slis.window_s``):

1. p99 kernel queue delay: from the histograms of all tenants, added up before the quantile is taken;
2. standard deviation of SM utilisation, in time, of the GPU where it is largest, while somebody wants that GPU;
3. coefficient of variation of token/s: across tenants by their entitlement, and of each tenant in time. Tokens are
   counted by the tenants' own servers, whose metrics pages are read once a second.

``formulas`` and ``curve`` and ``window`` and ``page`` are pure; ``fetch`` and ``scraper`` talk to the pages; ``part``
is the companion's. docs/slis.md defines all of it. What is not known is None, and says why.
"""
