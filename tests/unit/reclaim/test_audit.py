# SPDX-License-Identifier: Apache-2.0
"""The audit log: every byte of it is covered, whatever broke off is told, and who cannot write it must not act."""

from __future__ import annotations

import json
import os
import random
import socket
from pathlib import Path

import pytest

from fairsched.reclaim import witness
from fairsched.reclaim.audit import Audit, AuditRefused, State, Verdict
from fairsched.reclaim.chain import GENESIS, Fault, Head, check, link, read

LINES = 10_000
SAMPLES = 400


def made(directory: Path, entries: int = 5, **options: int) -> Audit:
    audit = Audit(directory / "audit", tell=lambda *_: None, **options)
    for number in range(entries):
        audit.write("reclaim", {"why": f"reason {number}", "uid": 0}, "reclaim", at_s=1000.0 + number)
    return audit


def file_of(audit: Audit, number: int = -1) -> Path:
    return sorted(audit.directory.glob("*.jsonl"))[number]


def faults(audit: Audit, noted: Head | None = None) -> str:
    return "\n".join(map(str, audit.verify(noted).faults))


def test_a_whole_log_is_said_to_be_whole_and_can_be_read(tmp_path: Path) -> None:
    audit = made(tmp_path)
    verdict = audit.verify()
    assert verdict == Verdict((), 5, verdict.head, 0)
    assert [entry["why"] for entry in audit.entries()] == [f"reason {number}" for number in range(5)]
    assert next(audit.entries())["time"] == "1970-01-01T00:16:40.000Z"
    assert Audit(tmp_path / "none").verify().entries == 0


def test_each_flipped_byte_of_ten_thousand_lines_is_found() -> None:
    """A bit of a byte, at places drawn at random, and at each place of one line."""
    head, lines = Head(), []
    for number in range(LINES):
        line, head = link(
            head, {"event": "end", "pid": number, "why": f"é {number}", "cgroup": "/gpu.slice/a"}
        )
        lines.append(line)
    raw = b"".join(lines)
    offsets = [len(b"".join(lines[:one])) for one in (0, 1)]
    draw = random.Random(20)
    places = [draw.randrange(len(raw)) for _ in range(SAMPLES)] + list(range(*offsets)) + [len(raw) - 1]

    def is_whole(text: bytes) -> bool:
        *whole, rest = text.split(b"\n")
        found, _ = check(
            [(str(n), line) for n, line in enumerate([*whole, *([rest] if rest else [])], 1)], Head(), head
        )
        return not found and not rest

    assert is_whole(raw)
    missed = []
    for place in places:
        # The lines around it stand for all: the others are what they were.
        begin = raw.rfind(b"\n", 0, max(0, place - 2000)) + 1
        end = raw.find(b"\n", min(len(raw), place + 2000))
        end = len(raw) if end < 0 else end + 1
        broken = bytearray(raw[begin:end])
        broken[place - begin] ^= 1 << draw.randrange(8)
        first = read(raw[begin:end].partition(b"\n")[0])
        assert not isinstance(first, str)
        *whole, rest = bytes(broken).split(b"\n")
        seen, _ = check([("", line) for line in whole], Head(first[1].seq - 1, first[2]), None)
        last = read(raw[begin:end].rstrip(b"\n").rpartition(b"\n")[2])
        assert not isinstance(last, str)
        end_seen, _ = check([("", line) for line in whole], Head(first[1].seq - 1, first[2]), last[1])
        if not (seen or end_seen or rest):
            missed.append(place)
    assert missed == []


def test_each_flipped_byte_of_the_files_is_found(tmp_path: Path) -> None:
    audit = made(tmp_path, 3)
    for path in (file_of(audit), audit.directory / "state.json"):
        raw = path.read_bytes()
        for place in range(len(raw)):
            path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
            assert faults(audit), (path, place)
        path.write_bytes(raw)
    assert faults(audit) == ""


@pytest.mark.parametrize("cut", [0, 1, 2, 4])
def test_lines_that_are_cut_are_found_also_at_the_end(tmp_path: Path, cut: int) -> None:
    audit = made(tmp_path)
    lines = file_of(audit).read_bytes().splitlines(keepends=True)
    file_of(audit).write_bytes(b"".join(lines[:cut] + lines[cut + 1 :]))
    found = faults(audit)
    assert "entry 5 was written last: cut or replaced" in found if cut == 4 else "cut or reordered" in found


@pytest.mark.parametrize("length", range(1, 400, 37))
def test_bytes_that_are_cut_off_the_end_are_found(tmp_path: Path, length: int) -> None:
    audit = made(tmp_path)
    os.truncate(file_of(audit), file_of(audit).stat().st_size - length)
    assert faults(audit)
    with pytest.raises(AuditRefused, match="was changed"):
        audit.write("reclaim", {}, "")


def test_lines_that_change_places_or_come_twice_are_found(tmp_path: Path) -> None:
    audit = made(tmp_path)
    one, two, *others = file_of(audit).read_bytes().splitlines(keepends=True)
    for order in (
        [two, one, *others],
        [one, one, two, *others],
        [one, b"\n", two, *others],
        [*others, one, two],
    ):
        file_of(audit).write_bytes(b"".join(order))
        assert faults(audit)


def test_a_line_with_a_hash_of_its_own_does_not_fit_in(tmp_path: Path) -> None:
    audit = made(tmp_path)
    lines = file_of(audit).read_bytes().splitlines(keepends=True)
    lines[2], _ = link(Head(2, GENESIS), {"why": "forged"})
    file_of(audit).write_bytes(b"".join(lines))
    assert "entry 3 does not follow entry 2" in faults(audit)


def test_a_log_that_was_written_anew_is_found_by_a_head_that_was_kept_elsewhere(tmp_path: Path) -> None:
    kept = made(tmp_path / "a").verify().head
    forged = Audit(tmp_path / "b" / "audit", tell=lambda *_: None)
    for number in range(5):
        forged.write("reclaim", {"why": f"another {number}"}, "")
    assert faults(forged) == "", "the chain alone cannot tell"
    assert "entry 5 is not the one that was noted: replaced" in faults(forged, kept)
    assert faults(made(tmp_path / "c"), kept) == ""


def test_rotation_keeps_the_chain_and_says_what_it_dropped(tmp_path: Path) -> None:
    audit = made(tmp_path, 40, max_bytes=1000, files=4)
    assert len(list(audit.directory.glob("*.jsonl"))) == 4
    verdict = audit.verify()
    assert verdict.faults == ()
    assert verdict.dropped + verdict.entries == 40
    assert audit.verify(Head(1, GENESIS)).notes == (
        "entry 1 was dropped by rotation: nothing is known of it",
    )
    for number in range(4):
        held = file_of(audit, number)
        raw = held.read_bytes()
        held.unlink()
        assert faults(audit), held
        held.write_bytes(raw)
    assert faults(audit) == ""


def test_a_file_that_rotation_was_about_to_remove_is_no_fault(tmp_path: Path) -> None:
    audit = made(tmp_path, 4, max_bytes=1000, files=4)
    first, raw = file_of(audit, 0), file_of(audit, 0).read_bytes()
    for number in range(40):
        audit.write("reclaim", {"why": f"more {number}"}, "")
    first.write_bytes(raw)
    assert faults(audit) == ""


def test_half_an_entry_of_a_power_cut_is_taken_off_and_told(tmp_path: Path) -> None:
    audit = made(tmp_path)
    with open(file_of(audit), "ab") as file:
        file.write(b'{"seq":6,"prev":"')
    assert faults(audit)
    audit.write("reclaim", {}, "")
    assert faults(audit) == ""
    *_, last = audit.entries()
    assert last["broken_off"]["bytes"] == 17


def test_an_entry_whose_state_was_not_written_counts(tmp_path: Path) -> None:
    audit = made(tmp_path)
    state = (audit.directory / "state.json").read_bytes()
    audit.write("reclaim", {"why": "last"}, "")
    (audit.directory / "state.json").write_bytes(state)
    verdict = audit.verify()
    assert verdict.faults == () and "its state was not: a power cut" in verdict.notes[0]
    audit.write("reclaim", {"why": "next"}, "")
    assert audit.verify() == Verdict((), 7, audit.verify().head, 0)


def test_the_first_entry_may_be_one_whose_state_was_not_written(tmp_path: Path) -> None:
    audit = made(tmp_path, 1)
    (audit.directory / "state.json").unlink()
    audit.write("reclaim", {"why": "next"}, "")
    assert [entry["seq"] for entry in audit.entries()] == [1, 2]


def test_more_than_one_entry_beyond_the_state_was_not_written_by_us(tmp_path: Path) -> None:
    audit = made(tmp_path, 2)
    state = (audit.directory / "state.json").read_bytes()
    made(tmp_path, 2)
    (audit.directory / "state.json").write_bytes(state)
    assert faults(audit)
    size = file_of(audit).stat().st_size
    with pytest.raises(AuditRefused):
        audit.write("reclaim", {}, "")
    assert file_of(audit).stat().st_size == size, "evidence stays as it is"


def test_a_state_that_is_gone_is_told(tmp_path: Path) -> None:
    audit = made(tmp_path)
    (audit.directory / "state.json").unlink()
    assert "whether the log was cut is not known" in faults(audit)
    with pytest.raises(AuditRefused):
        audit.write("reclaim", {}, "")


def test_a_disk_that_takes_half_an_entry_keeps_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = made(tmp_path)
    raw, write = file_of(audit).read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2]))
    with pytest.raises(AuditRefused, match=r"No space left on device.*so nothing is done") as caught:
        audit.write("reclaim", {}, "")
    assert caught.value.remedy == "make room on its disk"
    assert file_of(audit).read_bytes() == raw
    monkeypatch.undo()
    audit.write("reclaim", {}, "")
    assert faults(audit) == ""


def test_many_writers_make_one_chain(tmp_path: Path) -> None:
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                made(tmp_path, 20)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    audit = made(tmp_path, 0)
    assert audit.verify().entries == 80 and faults(audit) == ""


def test_the_journal_is_told_the_head_and_syslog_where_there_is_none(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        path = str(tmp_path / "j")
        journal.bind(path)
        head = Head(7, "ab" * 32)
        assert witness.tell("reclaim\nFAKE=1", head, journal=path) == "journal"
        said = journal.recv(4096).decode()
        assert f"FAIRSCHED_AUDIT_HASH={head.hash}\n" in said and "\nFAKE=1" not in said
        assert witness.tell("reclaim", head, journal=str(tmp_path / "none"), syslog=path) == "syslog"
        assert journal.recv(4096).decode() == f"<85>fairsched: reclaim audit={head}"
    assert witness.tell("reclaim", head, journal=path, syslog=path) is None


def test_a_number_that_is_left_out_is_found() -> None:
    line, head = link(Head(), {})
    later, _ = link(Head(4, head.hash), {})
    found, _ = check([("f:1", line[:-1]), ("f:2", later[:-1])], Head(), None)
    assert [fault.what for fault in found] == ["entry 5 does not follow entry 1: cut or reordered"]


def test_a_state_is_as_it_was_written_or_none() -> None:
    state = State(Head(3, "0" * 64), 12)
    assert State.of(state.to_bytes()) == state
    with pytest.raises(ValueError):
        State.of(json.dumps(json.loads(state.to_bytes())).encode())


def test_after_a_broken_line_the_next_ones_are_judged_by_themselves() -> None:
    head, lines = Head(), []
    for number in range(4):
        line, head = link(head, {"n": number})
        lines.append((f"f:{number + 1}", line.rstrip(b"\n")))
    lines[1] = ("f:2", lines[1][1].replace(b'"n":1', b'"n":9'))
    assert check(lines, Head(), head)[0] == [Fault("f:2", "its bytes do not have its hash: changed")]


@pytest.mark.parametrize("what", ["changed", "cut", "torn"])
def test_a_log_that_was_changed_is_not_gone_on_with(tmp_path: Path, what: str) -> None:
    """Else the next act would stand on top of it, whole."""
    audit = made(tmp_path)
    raw = file_of(audit).read_bytes()
    lines = raw.splitlines(keepends=True)
    new = {"changed": raw.replace(b"reason 4", b"reason 5"), "cut": b"".join(lines[:-1]), "torn": raw[:-9]}[
        what
    ]
    file_of(audit).write_bytes(new)
    with pytest.raises(AuditRefused, match="the audit log was changed"):
        audit.write("reclaim", {}, "")
    assert file_of(audit).read_bytes() == new


def test_a_clock_that_was_set_back_breaks_no_chain(tmp_path: Path) -> None:
    audit = made(tmp_path)
    audit.write("reclaim", {"why": "after"}, "", at_s=0.5)
    assert faults(audit) == ""
    assert [entry["seq"] for entry in audit.entries()][-1] == 6
