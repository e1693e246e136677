# SPDX-License-Identifier: Apache-2.0
"""Each word means one thing, and each command says what the one who asked has to know."""

from __future__ import annotations

from fairsched.model import MisbehaviourKind
from fairsched.protocol.status import TenantState


def test_no_state_of_a_tenant_has_the_name_of_a_misbehaviour() -> None:
    """To have opened no GPU is no offence."""
    assert not {one.value for one in TenantState} & {one.value for one in MisbehaviourKind}
