# SPDX-License-Identifier: Apache-2.0
"""Where a vendor's kernel module takes the compute percentages of containers, and the values of those keys."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from fairsched.config.section import Section

PLACEHOLDERS = ("gpu", "uuid", "container", "container12")
_OF_CONTAINER = frozenset(("container", "container12"))


def _layout(value: str) -> str:
    parts = re.split(r"\{([^{}]*)\}", value)
    plain, names = parts[::2], parts[1::2]
    if any(set("{}") & set(part) for part in plain) or not set(names) <= set(PLACEHOLDERS):
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise ValueError(f"a path may contain {known} and no other braces")
    if not value.startswith("/") or "\0" in value or ".." in value.split("/"):
        raise ValueError("an absolute path without '..' is needed")
    if not _OF_CONTAINER & set(names):
        raise ValueError(
            "one file for all containers says nothing of one: {container} or {container12} is needed"
        )
    return value


Layout = Annotated[str, AfterValidator(_layout)]


class CgpuKeys(Section):
    """Files of a vendor's module below /proc, one for each container on each GPU. Vendors differ: see their manual."""

    share_file: Layout | None = Field(
        default=None,
        max_length=1024,
        description="Takes the percentage of a GPU that a container is owed, by weights. In the path {gpu} is the "
        "index of the GPU, {uuid} its UUID, {container} the container's id, {container12} the first twelve letters "
        "of that.",
    )
    cap_file: Layout | None = Field(
        default=None, max_length=1024, description="Likewise, for its quota; not written for who has none."
    )
