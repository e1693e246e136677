# SPDX-License-Identifier: Apache-2.0
"""Run the tests of tests/vm under another kernel.

    run.py SERIES [--json FILE] [--short] [pytest arguments]
    run.py SERIES --command SHELL_COMMAND

SERIES is 5.10, 6.1, 6.12 or 7.2. --short: walks and random tests go a part of the way, which is what every make test
does. The second form runs something else there, as when one looks for a reason.

Boots Debian's kernel of that series under qemu, without KVM, with this machine's file system as root (what the
guest writes to it stays in the guest's memory), and ends with the status of pytest there. The tests' output comes
through a serial line as it is written; the kernel's messages are shown when the guest did not get that far.

Exit: pytest's status, 2 usage, 3 this host cannot, 124 out of time (FAIRSCHED_VM_LIMIT_S), 125 the guest died.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import initramfs  # noqa: E402

import build  # noqa: E402

SERIES = ("5.10", "6.1", "6.12", "7.2")
QEMU = "qemu-system-x86_64"
# no_timer_check: a guest that gets no processor for some milliseconds takes its timer for broken, and panics.
APPEND = "console=ttyS0 panic=-1 loglevel=4 mitigations=off no_timer_check random.trust_cpu=on cgroup_no_v1=all audit=0"
# The list Debian's 5.10 was built with lacks bpf; the later ones have it.
APPEND_FOR = {"5.10": "lsm=lockdown,yama,apparmor,bpf"}
PASSED_ON = ("FAIRSCHED_GARBAGE",)
OUT_OF_TIME, DIED, CANNOT, USAGE = 124, 125, 3, 2
TAIL_LINES = 25
PR_SET_PDEATHSIG = 1


def say(text: str) -> None:
    print(f"vm: {text}", file=sys.stderr, flush=True)


def missing() -> list[str]:
    """What this host lacks, in words."""
    found = [] if shutil.which(QEMU) else [f"{QEMU} (package qemu-system-x86)"]
    if not initramfs.BUSYBOX.exists():
        found.append(f"{initramfs.BUSYBOX} (package busybox-static)")
    elif b"/lib64/ld-linux" in initramfs.BUSYBOX.read_bytes():
        found.append(f"a static {initramfs.BUSYBOX} (package busybox-static)")
    if os.geteuid() != 0:
        found.append("root")
    return found


def command(modules: Path, series: str, arguments: list[str], *, is_short: bool = False) -> str:
    """What the guest runs: pytest on tests/vm, or on what the arguments name of it; or a command."""
    named = [one for one in arguments if one.split("::")[0].startswith("tests/vm")]
    pytest = [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=600"]
    environment = {
        "FAIRSCHED_VM": series,
        "FAIRSCHED_VM_MODULES": str(modules),
        "FAIRSCHED_VM_OUT": "/run/fairsched-vm",
        "FAIRSCHED_VM_SHORT": "1" if is_short else "0",
        "HOME": "/tmp",
        "LC_ALL": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TERM": "dumb",
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    words = [*pytest, *([] if named else ["tests/vm"]), *arguments]
    if arguments[:1] == ["--command"]:
        words = ["sh", "-c", " ".join(arguments[1:])]
    return "\n".join([*lines, f"cd {shlex.quote(str(ROOT))}", f"exec {shlex.join(words)}", ""])


def qemu_arguments(kernel: Path, initrd: Path, series: str, out: Path) -> list[str]:
    share = "security_model=none,multidevs=remap"
    return [
        *(QEMU, "-nodefaults", "-no-reboot", "-display", "none", "-no-user-config"),
        *("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"),
        *("-m", os.environ.get("FAIRSCHED_VM_MEMORY", "2G")),
        *("-kernel", str(kernel), "-initrd", str(initrd)),
        *("-append", f"{APPEND} {APPEND_FOR.get(series, '')}"),
        *("-virtfs", f"local,path=/,mount_tag=host,readonly=on,{share}"),
        *("-virtfs", f"local,path={out},mount_tag=out,{share}"),
        *("-device", "virtio-rng-pci"),
        *("-serial", f"file:{out}/console", "-serial", "stdio"),
    ]


def write_orders(out: Path, home: Path, orders: str) -> None:
    """What the guest reads in the share: see init and guest."""
    release = (home / "release").read_text().strip()
    (out / "keep").write_text(f"{ROOT}\n{home}\n")
    (out / "modules").write_text(f"{home}/root/usr/lib/modules/{release}\n")
    (out / "command").write_text(orders)
    shutil.copy(HERE / "guest", out / "guest")


def pass_on(source: IO[bytes]) -> None:
    while data := os.read(source.fileno(), 65536):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def die_with_parent() -> None:
    """In qemu's process, before qemu: whoever kills this program with SIGKILL leaves no guest behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def boot(words: list[str], limit_s: float) -> bool:
    """Run qemu to its end; False when it had to be ended."""
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, preexec_fn=die_with_parent
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=pass_on, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            process.wait(limit_s)
            return True
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            reader.join(5)


def show_console(out: Path) -> None:
    say("the kernel's last messages:")
    for line in (out / "console").read_text(errors="replace").splitlines()[-TAIL_LINES:]:
        print(f"    {line.rstrip()}", file=sys.stderr)


def run(series: str, json: Path | None, arguments: list[str], *, is_short: bool) -> int:
    ready = subprocess.run([HERE / "kernel", series], stdout=subprocess.PIPE, text=True)
    if ready.returncode != 0:
        return ready.returncode
    home = Path(ready.stdout.strip())
    release = (home / "release").read_text().strip()
    modules = build.modules(home, ROOT / "tests/vm/module")
    if modules is None:
        return 1
    initrd = home / "initramfs"
    initramfs.write(initrd, home / "root/usr/lib/modules" / release, HERE / "init")
    limit_s = float(os.environ.get("FAIRSCHED_VM_LIMIT_S", "1200"))
    with tempfile.TemporaryDirectory(prefix="fairsched-vm.") as directory:
        out = Path(directory)
        write_orders(out, home, command(modules, series, arguments, is_short=is_short))
        say(f"booting {release}")
        in_time = boot(qemu_arguments(home / "vmlinuz", initrd, series, out), limit_s)
        status = out / "status"
        if json is not None and (out / "results.json").exists():
            json.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(out / "results.json", json)
        if status.exists():
            return int(status.read_text())
        show_console(out)
        if in_time:
            say("the guest ended before the tests did")
            return DIED
        say(f"out of time after {limit_s:.0f} s (FAIRSCHED_VM_LIMIT_S)")
        return OUT_OF_TIME


def main(words: list[str]) -> int:
    json: Path | None = None
    if words[1:2] == ["--json"] and len(words) > 2:
        json, words = Path(words[2]), [words[0], *words[3:]]
    is_short = words[1:2] == ["--short"]
    if is_short:
        words = [words[0], *words[2:]]
    if not words or words[0] not in SERIES:
        options = "[--json FILE] [--short | --command] [arguments]"
        print(f"usage: run.py {'|'.join(SERIES)} {options}", file=sys.stderr)
        return USAGE
    if lacking := missing():
        say(f"missing: {', '.join(lacking)}. Run: sudo make setup-vm")
        return CANNOT
    os.chdir(ROOT)
    # A terminated run takes its guest along: boot() ends qemu on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return run(words[0], json, words[1:], is_short=is_short)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
