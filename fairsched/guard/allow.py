# SPDX-License-Identifier: Apache-2.0
"""Says whom no rule may accuse: by cgroup, unit, digest of the image or of the program, and never by a name.

A name is what its owner wrote: a miner called ``python`` would be allowed with all the others. What is not known of a
process is on no list.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairsched.guard.sample import Process


@dataclass(frozen=True, slots=True)
class Allow:
    """Nobody is allowed unless listed."""

    cgroups: tuple[str, ...] = ()
    """Paths as in /proc/PID/cgroup; what is below one is allowed, too."""
    units: tuple[str, ...] = ()
    """Of the host's systemd, whole names."""
    images: tuple[str, ...] = ()
    """``sha256:...``."""
    programs: tuple[str, ...] = ()
    """``sha256:...`` of the file that runs."""

    def why(self, process: Process) -> str | None:
        """The entry that allows it; None: there is none."""
        if process.cgroup is not None:
            for cgroup in self.cgroups:
                if _is_below(process.cgroup, cgroup):
                    return f"cgroup {cgroup}"
        for word, value, listed in (
            ("unit", process.unit, self.units),
            ("image", process.image_digest, self.images),
            ("program", process.program_digest, self.programs),
        ):
            if value is not None and value in listed:
                return f"{word} {value}"
        return None


def _is_below(path: str, cgroup: str) -> bool:
    cgroup = cgroup.rstrip("/")
    return path == cgroup or path.startswith(f"{cgroup}/")
