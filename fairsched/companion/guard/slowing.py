# SPDX-License-Identifier: Apache-2.0
"""Slows tenants down for whom a limit asks that, and has the kernel refuse memory beyond limits that end.

A hold lowers the quota of tenants that belong to the subject alone, to ``hold_quota`` of a GPU and never below what
they are guaranteed (``min``). It is over in the first round in which no breach asks for it: the subject is under its
limit, is back at warnings, or somebody else's process has come into the tenant. While processes of a held subject are
being ended it goes on.

``vram_limit`` of a tenant that a limit names and ends for is lowered to that limit for as long as the guard acts, so
that the kernel refuses what is beyond it, where it can. A tenant whose ``on_vram_limit`` is not ``warn`` is left out:
the daemon would hold or end it without the guard's warnings and grace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fairsched.companion.guard.lowered import Lowered, NotLowered
from fairsched.companion.guard.records import Cause, Records, cause_of, text_of
from fairsched.companion.values import Daemon, Settings, number, settings_of
from fairsched.errors import ControlError
from fairsched.guard.breach import Act, Breach

QUOTA, VRAM = "quota", "vram_limit"
HOLD_QUOTA = 0.05
_NO_DAEMON, _HOLD, _LIMIT = "daemon", "hold ", "limit "


class Slowing:
    """Keeps quotas and memory limits as breaches ask. ``hold_quota``: part of a GPU; ``tenant_vram``: bytes."""

    def __init__(
        self,
        daemon: Daemon,
        lowered: Lowered,
        records: Records,
        hold_quota: float = HOLD_QUOTA,
        tenant_vram: Mapping[str, int] | None = None,
    ) -> None:
        self._daemon, self._lowered, self._records = daemon, lowered, records
        self._hold_quota, self._tenant_vram = hold_quota, tenant_vram or {}
        self._causes: dict[str, set[Cause]] = {}
        """By tenant that is slowed down."""
        self._next: dict[str, set[Cause]] = {}
        """The same, of the round that is carried out."""

    @property
    def held(self) -> tuple[str, ...]:
        """Tenants that are slowed down now."""
        return tuple(sorted(tenant for tenant, key in self._lowered.done if key == QUOTA))

    def step(self, breaches: Sequence[Breach], mode: str, now_s: float) -> None:
        """As the breaches of this round ask. ``mode``: the daemon's."""
        self._next = {}
        wanted = self._wanted(breaches)
        is_any = bool(wanted or self._lowered.changes or self._tenant_vram)
        try:
            settings = settings_of(self._daemon) if is_any else {}
        except ControlError as error:
            self._records.trouble(_NO_DAEMON, f"the daemon does not say what tenants have: {error}")
            return
        self._records.trouble(_NO_DAEMON, None)
        self._lowered.cede(settings)
        places = {(tenant, QUOTA) for tenant in wanted} | {(tenant, VRAM) for tenant in self._tenant_vram}
        self._lowered.let_go("no limit asks for it any more", places)
        for tenant, breach in wanted.items():
            if (tenant, QUOTA) not in self._lowered.changes:
                self._slow_down(tenant, breach, settings, mode, now_s)
        for breach in breaches:
            if breach.act is Act.HOLD and breach.is_news and not breach.tenants:
                text = "nobody is slowed down: its tenants have processes of others, too"
                self._records.deed(breach, now_s, text, word="refused")
        self._limit_memory(settings)
        self._forget(wanted)
        changes = self._lowered.changes
        self._causes = {tenant: causes for tenant, causes in self._next.items() if (tenant, QUOTA) in changes}

    def pretend(self, breaches: Sequence[Breach], now_s: float) -> None:
        """In a dry run: what would be done is written down, and what is in force given back."""
        self._lowered.let_go("the guard does not act")
        self._causes = {}
        self._forget({})
        for breach in breaches:
            if breach.act is Act.HOLD and breach.is_news:
                self._records.write_breach("would hold", breach, is_dry=True)
                names = ", ".join(breach.tenants)
                text = f"would slow down {names}" if names else "nobody can be slowed down alone"
                self._records.deed(breach, now_s, text, word="dry_run", tenants=breach.tenants)

    def _wanted(self, breaches: Sequence[Breach]) -> dict[str, Breach]:
        """Tenants that are to be slow, each with the first breach that asks for it.

        While processes are ended, those that the same cause has slowed down before stay so.
        """
        found: dict[str, Breach] = {}
        for breach in breaches:
            cause = cause_of(breach)
            if breach.act is Act.HOLD:
                names: Iterable[str] = breach.tenants
            elif breach.act is Act.END:
                names = [tenant for tenant, causes in self._causes.items() if cause in causes]
            else:
                continue
            for tenant in names:
                found.setdefault(tenant, breach)
                self._next.setdefault(tenant, set()).add(cause)
        return found

    def _slow_down(self, tenant: str, breach: Breach, settings: Settings, mode: str, now_s: float) -> None:
        wanted = max(self._hold_quota, number(settings, tenant, "min") or 0.0)
        try:
            if mode != "enforce":
                raise NotLowered(f"mode is {mode}, and quotas are not enforced")
            exempt = settings.get(tenant, {}).get("exempt")
            if exempt is not None and exempt.value:
                raise NotLowered("it is exempt, so nothing slows it down")
            entry = {"limit": breach.limit, "subject": breach.subject.text, "what": breach.what.value}
            self._lowered.lower((tenant, QUOTA), wanted, settings, breach.text, entry)
        except NotLowered as error:
            self._records.refused(
                f"{_HOLD}{tenant}", f"{tenant} is not slowed down: {text_of(error)}", breach, now_s
            )
            return
        text = f"quota of {tenant} is {wanted:.0%} of a GPU for the time being"
        self._records.deed(breach, now_s, text, tenants=(tenant,))

    def _limit_memory(self, settings: Settings) -> None:
        for tenant, size in self._tenant_vram.items():
            matter, found = f"{_LIMIT}{tenant}", settings.get(tenant, {})
            now = number(settings, tenant, VRAM)
            if (tenant, VRAM) in self._lowered.changes or (now is not None and now <= size):
                self._records.trouble(matter, None)
                continue
            try:
                then = found.get("on_vram_limit")
                if then is not None and then.value != "warn":
                    raise NotLowered(f"its on_vram_limit is {then.value}, which acts without a grace")
                self._lowered.lower((tenant, VRAM), size, settings, "a limit of the guard ends for more", {})
                self._records.trouble(matter, None)
            except NotLowered as error:
                self._records.trouble(matter, f"vram_limit of {tenant} stays as it is: {text_of(error)}")

    def _forget(self, wanted: Mapping[str, object]) -> None:
        self._records.over(_HOLD, {f"{_HOLD}{tenant}" for tenant in wanted if tenant not in self.held})
