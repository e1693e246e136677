# SPDX-License-Identifier: Apache-2.0
"""``fairsched tenant list|set|unset``: live changes, kept by the daemon over restarts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fairsched.base.text import wrap
from fairsched.cli.common import change_options, daemon_options, echo_json, echo_lines, json_option
from fairsched.cli.text import cut_name, table
from fairsched.model import ADJUSTABLE

if TYPE_CHECKING:
    from fairsched.protocol.client import ControlClient

LIST_EPILOG = """\b
A value marked * was set with `fairsched tenant set`; one in brackets is a
default; the rest stand in the configuration file.
\b
Examples:
  fairsched tenant list
  fairsched tenant list --json | jq '.tenants[] | {name, weight, vram_limit}'"""

SET_EPILOG = """\b
The change takes effect within a tick, survives a restart of the daemon, and
wins over the configuration file until it is unset.
\b
Examples:
  fairsched tenant set chat --weight 6
  fairsched tenant set batch --quota 30% --class batch
  fairsched tenant set team/chat --exempt"""

UNSET_EPILOG = """\b
Examples:
  fairsched tenant unset chat weight    this value
  fairsched tenant unset chat           everything that was set"""


@click.group("tenant")
def command() -> None:
    """List tenants; change weights and limits live."""


@command.command("list", epilog=LIST_EPILOG)
@daemon_options
@json_option
def list_command(client: ControlClient, as_json: bool) -> None:
    """Show what every tenant is promised."""
    answer = client.request("tenant_list")
    if as_json:
        echo_json({"tenants": tenants_of(answer), "stale": answer["stale"]})
        return
    echo_lines(render_list(answer))


def tenants_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Each tenant of the answer of ``tenant_list`` as one object; ``origins`` says where its values come from."""
    found: dict[str, dict[str, Any]] = {}
    for setting in answer["settings"]:
        *path, key = (str(part) for part in setting["key"])
        name = "/".join(path[1::2])  # tenants, NAME, children, NAME, ...
        tenant = found.setdefault(name, {"name": name, "origins": {}})
        tenant[key], tenant["origins"][key] = setting["value"], setting["origin"]
    return list(found.values())


def render_list(answer: dict[str, Any]) -> list[str]:
    """The answer of ``tenant_list``, at most 80 columns wide: a table, and where each tenant is and what it may use."""
    tenants = tenants_of(answer)
    if not tenants:
        return ["no tenants in the configuration"]
    head = ("TENANT", "WEIGHT", "CLASS", "QUOTA", "MIN", "MAX HOLD MS", "EXEMPT")
    body = [(cut_name(one["name"], 22), *(_cell(one, key) for key in ADJUSTABLE[:6])) for one in tenants]
    titles, *rows = table([head, *body], right=(1, 3, 4, 5))
    lines = [titles]
    for one, row in zip(tenants, rows, strict=True):
        lines += [row, *wrap("; ".join(_places(one)), first="  ", rest="    ")]
    ended = sorted(one["name"] for one in tenants if "terminate" in one["on_misbehaviour"])
    if ended:
        lines += wrap(f"terminated on misbehaviour: {', '.join(ended)}")
    for name in answer["stale"]:
        lines += wrap(
            f"'{name}' has overrides, but is not in the configuration; to forget them: "
            f"fairsched tenant unset {name}",
            first="warning: ",
            rest="         ",
        )
    return lines


def _places(tenant: dict[str, Any]) -> Iterator[str]:
    """Which cgroups are its, which GPUs it may open, how much memory it may have on each."""
    for key in ("cgroup", "match"):  # a child has neither: it is below its parent's
        if tenant.get(key) is not None:
            yield f"{key} {_cell(tenant, key)}"
    yield f"gpus {_cell(tenant, 'gpus')}"
    limit = f"vram_limit {_cell(tenant, 'vram_limit')}"
    yield limit if tenant["vram_limit"] is None else f"{limit}, beyond it {_cell(tenant, 'on_vram_limit')}"


def _cell(tenant: dict[str, Any], key: str) -> str:
    value = tenant[key]
    if value is None:
        text = "-"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif key in ("quota", "min"):
        text = f"{value * 100:g}%"
    elif key == "vram_limit":
        text = f"{value / 2**30:.3g} GiB"
    elif isinstance(value, dict):
        text = "; ".join(f"{name}: {', '.join(names)}" for name, names in value.items())
    elif isinstance(value, list):
        text = ", ".join(map(str, value))
    else:
        text = f"{value:g}" if isinstance(value, (int, float)) else str(value)
    origin = tenant["origins"][key]
    if origin == "override":
        return f"{text}*"
    return text if origin == "file" else f"({text})"


def _ratio(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise click.BadParameter(f"{value!r} is not 0 to 1 or 0% to 100%", ctx, parameter)
    return number


@command.command("set", epilog=SET_EPILOG)
@click.argument("name")
@click.option("--weight", type=click.FloatRange(min=0, min_open=True), help="Share relative to others.")
@click.option("--quota", callback=_ratio, metavar="RATIO", help="Hard cap, 0.3 or 30%; 100% lifts it.")
@click.option("--min", "min_", callback=_ratio, metavar="RATIO", help="Guarantee under contention.")
@click.option("--class", "class_", type=click.Choice(["latency", "batch"]), help="Who is held first.")
@click.option("--max-freeze-ms", type=click.IntRange(10, 60_000), help="Longest hold.")
@click.option("--exempt/--no-exempt", default=None, help="Never hold it.")
@click.option(
    "--on-misbehaviour",
    type=click.Choice(["warn", "terminate"]),
    help="What to do about endless or unseen GPU work, and about leaving its cgroups.",
)
@click.option("--vram-limit", metavar="SIZE", help="Memory on each GPU, such as 8GiB.")
@click.option(
    "--on-vram-limit",
    type=click.Choice(["warn", "hold", "terminate"]),
    help="What to do where the kernel cannot refuse more.",
)
@change_options
@json_option
def set_command(
    client: ControlClient,
    name: str,
    weight: float | None,
    quota: float | None,
    min_: float | None,
    class_: str | None,
    max_freeze_ms: int | None,
    exempt: bool | None,
    on_misbehaviour: str | None,
    vram_limit: str | None,
    on_vram_limit: str | None,
    as_json: bool,
) -> None:
    """Change what tenant NAME is promised, at once."""
    options = (weight, class_, quota, min_, max_freeze_ms, exempt, on_misbehaviour, vram_limit, on_vram_limit)
    given = dict(zip(ADJUSTABLE, options, strict=True))
    values = {key: value for key, value in given.items() if value is not None}
    if not values:
        raise click.UsageError("Nothing to set: give at least one option, such as --weight 2.")
    _show_changes(client.request("tenant_set", tenant=name, values=values), as_json)


@command.command("unset", epilog=UNSET_EPILOG)
@click.argument("name")
@click.argument("keys", nargs=-1, type=click.Choice(ADJUSTABLE), metavar="[KEY]...")
@change_options
@json_option
def unset_command(client: ControlClient, name: str, keys: tuple[str, ...], as_json: bool) -> None:
    """Give the configuration file its say back.

    For the KEYs of tenant NAME, or for everything that was set.
    """
    _show_changes(client.request("tenant_unset", tenant=name, keys=list(keys)), as_json)


def _show_changes(changes: list[str], as_json: bool) -> None:
    if as_json:
        echo_json({"changes": changes})
        return
    echo_lines(changes or ["no change: the value was in effect already"])
