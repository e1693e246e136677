# SPDX-License-Identifier: Apache-2.0
"""The control law, pure: entitlement (shares), accounts over time (lag), the plan (decide)."""

from fairsched.policy.decide import Decision, decide
from fairsched.policy.lag import PolicyState

__all__ = ["Decision", "PolicyState", "decide"]
