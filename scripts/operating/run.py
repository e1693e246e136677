# SPDX-License-Identifier: Apache-2.0
"""Executes the commands of docs/operating.md, word for word, in a bare Debian under a real systemd.

    sudo python scripts/operating/run.py [--keep] [--upgrade-from COMMIT]

Problem. A handbook that nobody executes is wrong after a month, and what it needs is not seen on a machine on which
developers have installed everything.

Approach. debootstrap makes a bare Debian once (kept in the cache); an overlay of it, whose changes are in memory, is
booted with systemd as PID 1 in a container (systemd-nspawn). There ``inside`` clones the checkout and executes each
block of the page that begins with sh; after some of them it looks whether what the page promises is so. The
container shares the network of the host, since packages are fetched, and nothing else: not its files, not its
processes.

``--upgrade-from``: instead of the page, that commit's fairsched is installed there, then the checkout's over it, and so
back and forth while somebody is held (upgrade.py).

Environment: FAIRSCHED_VM_CACHE, as for scripts/vm; FAIRSCHED_VM_MIRROR, a Debian mirror. pip's settings of the caller
(PIP_INDEX_URL, PIP_CERT) are those of the container.
Exit: 0 all blocks did what the page says, 1 one did not, 3 this host cannot.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from blocks import shell_blocks

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs/operating.md"
SUITE = "bookworm"
PACKAGES = "systemd,systemd-sysv,make,git,sudo,ca-certificates"
"""What somebody has who has a checkout on a node; the page installs the rest."""
LIMIT_S = 1500
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


_PROBE = """
mount -t tmpfs probe "$1" && mkdir "$1/upper" "$1/work" "$1/root" &&
    mount -t overlay probe -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
"""


class TrialError(Exception):
    """The trial could not begin."""

    exit_status = 1


class CannotError(TrialError):
    """Mount namespaces or overlayfs: no set-up would bring them."""

    exit_status = 3


def cache() -> Path:
    return Path(os.environ.get("FAIRSCHED_VM_CACHE", "/var/cache/fairsched-vm")) / "operating"


def probe_host() -> None:
    if os.geteuid() != 0:
        raise TrialError("needs root")
    for tool, package in (
        ("debootstrap", "debootstrap"),
        ("systemd-nspawn", "systemd-container"),
        ("git", "git"),
    ):
        if shutil.which(tool) is None:
            raise TrialError(f"no {tool} here: apt-get install {package}")
    with tempfile.TemporaryDirectory() as scratch:
        probe = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _PROBE, "sh", scratch]
        if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
            raise CannotError("mount namespaces or overlayfs may not be used here")


def mirror() -> str:
    """The first Debian archive of the system's own sources."""
    named = os.environ.get("FAIRSCHED_VM_MIRROR")
    if named:
        return named
    for file in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))):
        text = file.read_text(errors="replace") if file.is_file() else ""
        for url in re.findall(r"^(?:URIs:|deb(?: \[[^]]*\])?) *(https?://\S+)", text, re.MULTILINE):
            if url.rstrip("/").endswith("/debian"):
                return str(url)
    raise TrialError("apt's sources name no Debian archive: set FAIRSCHED_VM_MIRROR to one")


def bare_root() -> Path:
    """A bare Debian, made once."""
    home = cache()
    debs = home / "debs"
    (debs / "partial").mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(f"{SUITE} {PACKAGES}".encode()).hexdigest()[:10]
    root = home / f"root-{key}"
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            unfinished = home / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", f"--cache-dir={debs}"]
            with open(home / "debootstrap.log", "w") as log:
                done = subprocess.run(
                    [*command, SUITE, str(unfinished), mirror()], stdout=log, stderr=log, check=False
                )
            if done.returncode != 0:
                raise TrialError(f"debootstrap failed: {home / 'debootstrap.log'}; is {mirror()} reachable?")
            unfinished.rename(root)
    return root


def older(commit: str, target: Path) -> None:
    """A repository with the tree of an older commit as its only one."""
    archive = subprocess.run(
        ["git", "-c", "safe.directory=*", "archive", commit], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode != 0:
        raise CannotError(
            f"no commit {commit} here, as in a shallow clone: {archive.stderr.decode().strip()}"
        )
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    commit_all(target)


def snapshot(target: Path) -> None:
    """A repository with the working tree as its only commit: what a reader would clone."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        source, copy = ROOT / name, target / name
        if source.is_symlink() or source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    commit_all(target)


def commit_all(target: Path) -> None:
    git = ["git", "-C", str(target), "-c", "user.name=trial", "-c", "user.email=trial@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "snapshot"]):
        subprocess.run([*git, *command], check=True)


def prepare(work: Path, upgrade_from: str | None) -> None:
    """What the container sees as /trial."""
    (work / "blocks").mkdir()
    (work / "out").mkdir()
    (work / "source").mkdir()
    for number, block in enumerate(shell_blocks(PAGE), 1):
        (work / "blocks" / f"{number:02}-line-{block.line}").write_text(block.text)
    snapshot(work / "source")
    if upgrade_from is not None:
        (work / "old").mkdir()
        older(upgrade_from, work / "old")
    for name in ("inside", "look.py", "editor", "trial.service", "boot"):
        shutil.copy2(HERE / name, work / name)
    if upgrade_from is not None:
        shutil.copy2(HERE / "upgrade.py", work / "upgrade.py")
        shutil.copy2(HERE / "inside-upgrade", work / "inside")
    lines = [
        f"{key.removeprefix('PIP_').lower().replace('_', '-')} = {os.environ[key]}\n"
        for key in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT")
        if os.environ.get(key)
    ]
    (work / "pip.conf").write_text("[global]\n" + "".join(lines))
    if CERTIFICATES.exists():  # of a proxy between us and the index, perhaps
        shutil.copy2(CERTIFICATES, work / "certificates")
    proxies = [path.read_text() for path in Path("/etc/apt/apt.conf.d").glob("*proxy*")]
    (work / "apt.conf").write_text("".join(proxies) + 'APT::Keep-Downloaded-Packages "true";\n')
    work.chmod(0o755)


def play(work: Path, root: Path) -> int:
    """Boots the container and waits for its end; prints what each block did."""
    boot = ["unshare", "--mount", "--propagation", "private", str(work / "boot"), str(work), str(root)]
    with open(work / "console", "w") as console:
        subprocess.run(
            ["timeout", "--kill-after=10", str(LIMIT_S), *boot, str(cache() / "debs")],
            stdout=console,
            stderr=console,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    result = work / "result"
    said = result.read_text() if result.exists() else ""
    print(said, end="")
    if said.endswith("ended=yes\n"):
        return 0
    tail = [work / "console"] if not said else []
    for file in [*sorted((work / "out").iterdir())[-1:], *tail, work / "journal"]:
        if file.exists():
            lines = file.read_text(errors="replace").splitlines()[-60:]
            print(f"---- the end of {file.name}", *lines, sep="\n", file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave what the blocks said in a directory, and name it"
    )
    parser.add_argument("--upgrade-from", metavar="COMMIT", help="try an upgrade from there, and back")
    options = parser.parse_args()
    work = None
    try:
        probe_host()
        root = bare_root()
        work = Path(tempfile.mkdtemp(prefix="fairsched-operating-"))
        prepare(work, options.upgrade_from)
        return play(work, root)
    except TrialError as error:
        print(f"operating: {error}", file=sys.stderr)
        return error.exit_status
    finally:
        if work is not None and options.keep:
            print(f"kept: {work}", file=sys.stderr)
        elif work is not None:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
