# SPDX-License-Identifier: Apache-2.0
"""From the section ``guard`` of the configuration to a part of the companion.

NVML is opened by the thread that looks, at its first look: a driver that hangs must not keep the companion from coming.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from fairsched.companion.guard import LOWERED_FILE, STATUS_FILE, directory_of
from fairsched.companion.guard.ending import Reclaimer
from fairsched.companion.guard.hands import Hands
from fairsched.companion.guard.lowered import Lowered
from fairsched.companion.guard.part import GuardPart, LeftPart
from fairsched.companion.guard.records import Records
from fairsched.companion.guard.slowing import Slowing
from fairsched.companion.guard.tapes import TapeLimits, Tapes
from fairsched.companion.guard.unknown import unknown_names
from fairsched.companion.guard.watch import Tools, Watch, WatchRules
from fairsched.companion.locked import LockedFile
from fairsched.companion.part import Node
from fairsched.config import Config
from fairsched.guard.sample import Round
from fairsched.guard.words import limit_texts
from fairsched.protocol.client import ControlClient
from fairsched.protocol.process import process_from_plain
from fairsched.reclaim.audit import Audit
from fairsched.reclaim.listing import Lister
from fairsched.reclaim.rounds import Collector
from fairsched.reclaim.session import Session
from fairsched.reclaim.told import gpu_views, own_of, tenant_seconds

_DAY_S = 86400.0


def part_of(config: Config, node: Node) -> GuardPart:
    """The part that keeps limits. Its thread runs when this returns."""
    guard, directory = config.guard, directory_of(config.state_dir)
    rules, client = guard.rules(), ControlClient(config.socket_path)
    audit = Audit(config.state_dir / "audit")
    records = Records(audit)
    file = LockedFile(directory, LOWERED_FILE)
    lowered = Lowered(client, file, records)
    slowing = Slowing(client, lowered, records, guard.hold_quota, rules.tenant_vram())
    make_lister = functools.partial(_lister, config, node, client)

    def session() -> Session:
        return Session(make_lister(), own_of(node.report(), config.run_dir))

    tools = Tools(
        look=_looker(make_lister, node, config.run_dir),
        mode=lambda: node.report().mode,
        tapes=Tapes(directory, TapeLimits(guard.tape.max_bytes, guard.tape.keep_days * _DAY_S)),
        records=records,
        lowered=lowered,
        slowing=slowing,
        hands=Hands(
            records,
            slowing,
            Reclaimer(session, audit, rules.allow),
            is_acting=guard.mode == "act",
            is_forced=rules.is_forced,
        ),
        file=file,
    )
    watch = WatchRules(
        rules=rules,
        mode=guard.mode,
        interval_s=guard.interval,
        status_path=config.run_dir / STATUS_FILE,
        limits=limit_texts(rules),
        notes=tuple(unknown_names(config)),
    )
    return GuardPart(Watch(watch, tools), guard.interval).start()


def left_part_of(config: Config) -> LeftPart:
    """The part that only gives back."""
    records = Records(Audit(config.state_dir / "audit"))
    file = LockedFile(directory_of(config.state_dir), LOWERED_FILE)
    return LeftPart(file, Lowered(ControlClient(config.socket_path), file, records), records)


def _lister(config: Config, node: Node, client: ControlClient) -> Lister:
    return Lister(
        lambda: [process_from_plain(one) for one in client.request("processes")],
        device_dir=config.gpu.device_dir,
        told_gpus=lambda: gpu_views(node.report()),
    )


def _looker(make_lister: Callable[[], Lister], node: Node, run_dir: Path) -> Callable[[], Round]:
    """A look; the collector is made at the first."""

    @functools.cache
    def collector() -> Collector:
        return Collector(make_lister(), tenants=lambda: tenant_seconds(node.report()), run_dir=run_dir)

    return lambda: collector().look()
