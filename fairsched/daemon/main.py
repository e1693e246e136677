# SPDX-License-Identifier: Apache-2.0
"""Runs the daemon as this process: reads the configuration, sets up the log, asks for root, and loops."""

from __future__ import annotations

import os
from pathlib import Path

from fairsched.base.logs import set_up_logging
from fairsched.config.settings import Settings
from fairsched.daemon.loop import Daemon
from fairsched.errors import HostUnsupported


def run_daemon(config_path: Path | None, *, dry_run: bool, once: bool) -> int:
    """Run until SIGTERM or SIGINT; ``once`` ends after one tick. Returns the exit status.

    Raises ConfigError, HostUnsupported and ControlError at start.
    """
    configured = Settings(config_path)
    log = configured.config.log
    set_up_logging(log.format, log.level)
    if os.geteuid() != 0:
        raise HostUnsupported(
            "fairsched run needs root (BPF, cgroup.freeze)",
            remedy="sudo fairsched run, or the systemd service",
        )
    with Daemon(configured, is_dry_run=dry_run) as daemon:
        return daemon.run(once=once)
