# SPDX-License-Identifier: Apache-2.0
"""Run the tests of tests/vm under another kernel.

    run.py SERIES[+BOOT] [--json FILE] [--short] [pytest arguments]
    run.py SERIES[+BOOT] --command SHELL_COMMAND

SERIES is 5.10, 6.1, 6.12 or 7.2. BOOT, where it is not cgroup v2 alone and no lockdown: v1 (only cgroup v1 is
mounted), hybrid (v1, and v2 beside it without controllers), lockdown (confidentiality), systemd (cgroup v2 alone, and
process 1 is systemd; the tests are a service of it, by default some of tests/k8s). --short: walks and random tests go
a part of the way, which is what every make test does. The second form runs something else there, as when one looks
for a reason.

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

import build  # noqa: E402
import initramfs  # noqa: E402

SERIES = ("5.10", "6.1", "6.12", "7.2")
QEMU = "qemu-system-x86_64"
# no_timer_check: a guest that gets no processor for some milliseconds takes its timer for broken, and panics.
APPEND = "console=ttyS0 panic=-1 loglevel=4 mitigations=off no_timer_check random.trust_cpu=on audit=0"
# The list Debian's 5.10 was built with lacks bpf; the later ones have it.
APPEND_FOR = {"5.10": "lsm=lockdown,yama,apparmor,bpf"}
BOOTS = {
    "v2": "cgroup_no_v1=all",
    "lockdown": "cgroup_no_v1=all lockdown=confidentiality",
    "v1": "",
    "hybrid": "",
    "systemd": "cgroup_no_v1=all",
}
"""Boot -> what it adds to the kernel's command line. ``guest`` mounts the cgroups that it stands for."""
USUAL = "v2"
IN_CLUSTER = "systemd"
"""The boot for a Kubernetes and its images, which lie in memory; it takes minutes to come up."""
COMPILED = Path(os.environ.get("FAIRSCHED_K8S_CACHE", "/var/cache/fairsched-k8s")) / "bpf"
"""Programs that the last guest with a cluster has compiled."""
CLUSTER_TESTS = ("tests/k8s/test_pods.py",)
RUNGS = "tests/vm/test_rungs.py"
"""A boot of its own, as it measures: played only where it is named."""
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


def parse_target(word: str) -> tuple[str, str] | None:
    """Series and boot of ``SERIES[+BOOT]``; None where there is no such."""
    series, plus, boot = word.partition("+")
    boot = boot if plus else USUAL
    return (series, boot) if series in SERIES and boot in BOOTS else None


def command(modules: Path, series: str, boot: str, arguments: list[str], *, is_short: bool = False) -> str:
    """What the guest runs: pytest on its tests, or on what the arguments name of them; or a command."""
    named = [one for one in arguments if one.split("::")[0].startswith(("tests/vm", "tests/k8s"))]
    timeout = "timeout=1800" if boot == IN_CLUSTER else "timeout=600"
    pytest = [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-p", "no:cacheprovider", "-o", timeout]
    usual = CLUSTER_TESTS if boot == IN_CLUSTER else ("tests/vm", f"--ignore={RUNGS}")
    environment = {
        "FAIRSCHED_VM": series,
        "FAIRSCHED_VM_BOOT": boot,
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
    words = [*pytest, *([] if named else usual), *arguments]
    if arguments[:1] == ["--command"]:
        words = ["sh", "-c", " ".join(arguments[1:])]
    return "\n".join([*lines, f"cd {shlex.quote(str(ROOT))}", f"exec {shlex.join(words)}", ""])


def write_disk(out: Path) -> bool:
    """The images of a cluster, for a guest to mount; False, and the reason told, where that failed."""
    words = [sys.executable, "-m", "tests.k8s.disk", str(out / "disk")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        say(f"the images of the cluster could not be made: {done.stderr[-1500:]}")
    return done.returncode == 0


def qemu_arguments(kernel: Path, initrd: Path, series: str, boot: str, out: Path) -> list[str]:
    share = "security_model=none,multidevs=remap"
    disk = ["-drive", f"file={out}/disk,format=raw,if=virtio,snapshot=on"] if boot == IN_CLUSTER else []
    return [
        *(QEMU, "-nodefaults", "-no-reboot", "-display", "none", "-no-user-config"),
        *("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"),
        *("-m", os.environ.get("FAIRSCHED_VM_MEMORY", "6G" if boot == IN_CLUSTER else "2G")),
        *("-kernel", str(kernel), "-initrd", str(initrd)),
        *("-append", f"{APPEND} {BOOTS[boot]} {APPEND_FOR.get(series, '')}"),
        *("-virtfs", f"local,path=/,mount_tag=host,readonly=on,{share}"),
        *("-virtfs", f"local,path={out},mount_tag=out,{share}"),
        *("-device", "virtio-rng-pci"),
        *disk,
        *("-serial", f"file:{out}/console", "-serial", "stdio"),
    ]


def write_orders(out: Path, home: Path, boot: str, orders: str) -> None:
    """What the guest reads in the share: see init and guest."""
    release = (home / "release").read_text().strip()
    (out / "keep").write_text(f"{ROOT}\n{home}\n")
    (out / "modules").write_text(f"{home}/root/usr/lib/modules/{release}\n")
    (out / "boot").write_text(f"{boot}\n")
    (out / "command").write_text(orders)
    for name in ("guest", "play"):
        shutil.copy(HERE / name, out / name)


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


def run(series: str, kind: str, json: Path | None, arguments: list[str], *, is_short: bool) -> int:
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
    limit_s = float(os.environ.get("FAIRSCHED_VM_LIMIT_S", "3600" if kind == IN_CLUSTER else "1200"))
    with tempfile.TemporaryDirectory(prefix="fairsched-vm.") as directory:
        out = Path(directory)
        if kind == IN_CLUSTER and not write_disk(out):
            return CANNOT
        if kind == IN_CLUSTER:
            COMPILED.mkdir(parents=True, exist_ok=True)
            shutil.copytree(COMPILED, out / "bpf")
        write_orders(out, home, kind, command(modules, series, kind, arguments, is_short=is_short))
        say(f"booting {release}" + ("" if kind == USUAL else f", {kind}"))
        in_time = boot(qemu_arguments(home / "vmlinuz", initrd, series, kind, out), limit_s)
        status = out / "status"
        if kind == IN_CLUSTER:
            shutil.copytree(out / "bpf", COMPILED, dirs_exist_ok=True)
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
    target = parse_target(words[0]) if words else None
    if target is None:
        boots = "|".join(boot for boot in BOOTS if boot != USUAL)
        options = f"[+{boots}] [--json FILE] [--short | --command] [arguments]"
        print(f"usage: run.py {'|'.join(SERIES)}{options}", file=sys.stderr)
        return USAGE
    if lacking := missing():
        say(f"missing: {', '.join(lacking)}. Run: sudo make setup-vm")
        return CANNOT
    os.chdir(ROOT)
    # A terminated run takes its guest along: boot() ends qemu on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return run(*target, json, words[1:], is_short=is_short)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
