# SPDX-License-Identifier: Apache-2.0
"""The daemon's settings behind its socket's requests, for parts of the companion that change them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairsched.config.settings import Settings
from fairsched.errors import ControlError, FairschedError
from fairsched.protocol.status import to_plain
from tests.unit.config.kept import set_tenant, unset_tenant


class SettingsDaemon:
    """The daemon's settings behind its socket's requests."""

    def __init__(self, directory: Path, text: str) -> None:
        path = directory / "config.yaml"
        path.write_text(text.format(state=directory / "state"))
        self.settings = Settings(path)
        self.error: ControlError | None = None

    def request(self, name: str, **args: Any) -> Any:
        if self.error is not None:
            raise self.error
        try:
            if name == "tenant_list":
                return to_plain(self.settings.tenant_list())
            if name == "tenant_set":
                return set_tenant(self.settings, args["tenant"], args["values"])
            assert name == "tenant_unset"
            return unset_tenant(self.settings, args["tenant"], args["keys"])
        except FairschedError as error:
            raise ControlError(str(error), remedy=error.remedy) from None

    def value(self, name: str, key: str) -> Any:
        return getattr(self.settings.config.tenants[name], key)
