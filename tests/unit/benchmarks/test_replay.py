# SPDX-License-Identifier: Apache-2.0
"""What an account was given stands on a tape, and an account that is given it again says the same."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cut_tape import cut
from benchmarks.record import RecordedAccount, Recorder, plain
from benchmarks.replay import Playback, charged_ns, main, totals
from benchmarks.tape import MAGIC, TapeError, Writer, frames
from benchmarks.tape_layout import Layouts, Struct, layout, layouts
from fairsched.accounting.context import ProcessUse
from fairsched.accounting.ebpf import EbpfAccount
from fairsched.bpf import abi
from tests.unit.accounting.fake_probe import MS, SLICE_NS, SWITCH_NS, FakeProbe, FakeTrace

SIMULATED = Path(__file__).with_name("simulated.tape")
"""3 s of a decoder, a trainer and a light tenant on the simulated GPU, under an enforcing daemon."""
SIMULATED_MS = {"decode": 1451.4, "train": 1485.0, "light": 112.5}
"""The truth of it: the engine's own book."""
LEFT, RIGHT = 101, 102
TENANTS = {LEFT: "left", RIGHT: "right"}


class Arrays:
    """Of a probe, as BPF has them."""

    def __init__(self, kind: Any, room: int) -> None:
        self.items = (kind * room)()


class MappedProbe(FakeProbe):
    """A fake one whose contexts lie in arrays, as those of BPF do."""

    def __init__(self) -> None:
        super().__init__()
        self._ctxs, self._graphs = Arrays(abi.Ctx, abi.MAX_CTXS), Arrays(abi.Graphs, abi.MAX_CTXS)
        self._clocks, self._counts = Arrays(abi.Clock, abi.MAX_SLOTS), Arrays(ctypes.c_uint64, len(abi.Count))

    def settle(self) -> None:
        """Lay down what processes did."""
        for slot, live in enumerate(self.contexts_by_slot):
            self._ctxs.items[slot] = live
            self._graphs.items[slot] = self.graphs_by_slot[slot]
        self._counts.items[abi.Count.EDGE_DROPPED] = self.dropped

    def uses(self) -> list[Any]:
        return []

    delays = uses

    def counts(self) -> dict[str, int]:
        return {}


def play(probe: MappedProbe, account: EbpfAccount) -> list[list[ProcessUse]]:
    """Two that share a GPU, holds, a lost edge, a process that goes; the rows of each read."""
    account.tenant_of = TENANTS.get
    rows = []
    probe.create(0, 11, LEFT, t_ns=MS)
    probe.create(1, 12, RIGHT, t_ns=MS, is_seen=False)
    for turn in range(1, 60):
        t_ns = turn * 20 * MS
        probe.launch(1, t_ns + MS, 4)
        probe.is_losing = turn == 30
        if turn % 10 not in (6, 7):  # else it is held
            probe.launch(0, t_ns, 10, graph=0xABC if turn % 2 else 0)
        if turn % 10 not in (5, 6):  # its queue drains meanwhile
            probe.sync(0, t_ns + 12 * MS)
        probe.is_losing = False
        probe.settle()
        if turn % 10 == 5:
            account.hold([LEFT], t_ns + 13 * MS)
            account.queued_since_hold_ns(one for one in (LEFT,))
        if turn % 10 == 7:
            account.take_in(1)
            account.thaw([LEFT], t_ns + 13 * MS)
        if turn == 40:
            account.seen_running = {(12, 0): t_ns}
            account.intruded = {0}
            account.single_gpu_processes.add(11)
        if turn == 45:
            account.relearn(0)
            account.end((1, 1), t_ns + 13 * MS)
        probe.sync(1, t_ns + 17 * MS)
        probe.settle()
        rows.append(account.read(t_ns + 18 * MS))
    probe.end(0, 61 * 20 * MS)
    probe.settle()
    return [*rows, account.read(61 * 20 * MS)]


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder(Writer(tmp_path / "made.tape"))
    monkeypatch.setattr(RecordedAccount, "recorder", recorder, raising=False)
    return recorder


def account_on(probe: MappedProbe, kind: type[EbpfAccount] = RecordedAccount) -> EbpfAccount:
    made = kind(probe, gpus=1, nature=(SLICE_NS, SWITCH_NS), started_ns={12: 5}.get)  # type: ignore[arg-type]
    return made


def test_a_recorded_account_says_what_any_says(recorder: Recorder) -> None:
    probe, other = MappedProbe(), MappedProbe()
    assert play(probe, account_on(probe)) == play(other, account_on(other, EbpfAccount))
    assert probe.drains_ended == other.drains_ended != []


def test_a_replay_says_what_was_recorded(recorder: Recorder) -> None:
    rows = play(probe := MappedProbe(), account_on(probe))
    play(again := MappedProbe(), account_on(again))  # the probes were lost, and loaded again
    recorder.writer.close()

    playback = Playback(recorder.writer.path)
    looks = list(playback.looks())

    assert [look.recorded for look in looks] == [*rows, *rows]
    assert [look.replayed for look in looks] == [*rows, *rows]
    assert not playback.differences
    assert {"hold", "thaw", "take_in", "queued_since_hold_ns", "relearn", "end"} < playback.calls.keys()
    assert playback.tenants == TENANTS
    path = recorder.writer.path
    assert charged_ns(path) == charged_ns(path, is_recorded=True)
    assert charged_ns(path)[11][-1][1] == 2 * sum(
        one.used_ns for row in rows for one in row if one.tgid == 11
    )


def test_a_trace_is_on_the_tape(recorder: Recorder) -> None:
    """With a process of which no call is seen, and the end of the trace."""
    trace, probe = FakeTrace(), MappedProbe()
    account = account_on(probe)
    account.tenant_of, account.cgroup_of = TENANTS.get, {500: RIGHT}.get
    account.following.begin(0, trace)
    probe.create(0, 11, LEFT, t_ns=MS)
    probe.launch(0, 2 * MS, 1000)
    rows = []
    for turn in range(1, 9):
        probe.settle()
        trace.rounds(11, 500, begin_ms=20 * turn, count=5)
        trace.is_lost = turn == 7
        rows.append(account.read((20 * turn + 20) * MS))
    recorder.writer.close()

    playback = Playback(recorder.writer.path)
    assert [look.replayed for look in playback.looks()] == rows
    assert not playback.differences
    assert sum(row.used_ns for read in rows for row in read if row.tgid == 500) == 5 * 10 * MS
    assert playback.account is not None
    assert playback.account.traced_gpus() == set()


def test_what_changed_code_says_otherwise_is_counted(
    recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    class Doubled(EbpfAccount):
        def read(self, now_ns: int) -> list[ProcessUse]:
            rows = super().read(now_ns)
            for row in rows:
                row.used_ns *= 2
            return rows

        def end(self, *_args: Any) -> None:
            raise LookupError("unknown")

    play(probe := MappedProbe(), account_on(probe))
    recorder.writer.close()
    playback = Playback(recorder.writer.path, Doubled)
    found, _, _ = totals(playback)
    assert found[11].replayed_ns == 2 * found[11].recorded_ns > 0
    assert found[11].tenant == "left"
    assert playback.differences["read"]
    assert playback.differences["end raised LookupError('unknown'), not None"] == 1

    assert main([str(recorder.writer.path)]) == 0
    assert "left" in capsys.readouterr().out


def test_a_tape_that_breaks_off_is_read_to_there(recorder: Recorder, tmp_path: Path) -> None:
    play(probe := MappedProbe(), account_on(probe))
    recorder.writer.close()
    data, broken = recorder.writer.path.read_bytes(), tmp_path / "broken.tape"
    broken.write_bytes(data[: len(data) // 2])
    playback = Playback(broken)
    assert 0 < len(list(playback.looks())) < 60
    assert not playback.differences


def test_what_is_no_tape_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("<html>")
    with pytest.raises(TapeError, match="is no tape"):
        list(frames(tmp_path / "page"))
    assert main([str(tmp_path / "page")]) == main([str(tmp_path / "none")]) == 2


def test_each_start_has_a_tape_of_its_own(tmp_path: Path) -> None:
    writers = [Writer(tmp_path / "one.tape") for _ in range(2)]
    assert [writer.path.name for writer in writers] == ["one.tape", "one-2.tape"]
    for writer in writers:
        writer.close()
        assert writer.path.read_bytes().startswith(MAGIC)


def test_a_full_disk_ends_the_tape_and_nothing_else(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder.writer, "write", full)
    probe, other = MappedProbe(), MappedProbe()
    assert play(probe, account_on(probe)) == play(other, account_on(other, EbpfAccount))
    assert capsys.readouterr().err.count("the tape ends") == 1


def test_a_part_begins_with_what_was_true_by_then(recorder: Recorder, tmp_path: Path) -> None:
    play(probe := MappedProbe(), account_on(probe))
    recorder.writer.close()
    path = recorder.writer.path
    times = [frame.head["at"] for frame in frames(path)]
    middle_s, end_s = ((times[at] - times[0]) / 1e9 for at in (len(times) // 2, len(times) - 1))
    part = tmp_path / "part.tape"
    cut(path, part, middle_s, end_s)

    whole, playback = Playback(path), Playback(part)
    found = list(playback.looks())

    assert [look.recorded for look in found] == [look.recorded for look in whole.looks()][-len(found) :]
    assert playback.tenants == TENANTS
    assert playback.probe is not None and whole.probe is not None
    assert playback.probe.context(1).submitted == whole.probe.context(1).submitted
    assert {row.tgid for look in found for row in look.replayed} == {11, 12}


def test_structs_of_then_are_read_by_the_names_of_their_fields() -> None:
    class Inner(ctypes.Structure):
        _fields_ = (("gone", ctypes.c_uint32), ("kept", ctypes.c_uint64))

    class Then(ctypes.Structure):
        _fields_ = (("size", ctypes.c_uint32), ("inner", Inner * 2), ("name", ctypes.c_uint16))

    class InnerNow(ctypes.Structure):
        _fields_ = (("kept", ctypes.c_uint64), ("new", ctypes.c_uint64))

    class Now(ctypes.Structure):
        _fields_ = (("name", ctypes.c_uint16), ("size", ctypes.c_uint64), ("inner", InnerNow * 3))

    then = Then(7, (Inner * 2)((1, 2), (3, 4)), 5)
    now = Now.from_buffer_copy(Struct(layout(Then), layout(Now)).now(bytes(then)))
    assert (now.name, now.size, [one.kept for one in now.inner]) == (5, 0, [2, 4, 0])

    counted = Layouts({**layouts(), "counts": ["FORGOTTEN", "EDGE_DROPPED"]})
    assert [counted.index(3, one) for one in range(2)] == [None, abi.Count.EDGE_DROPPED]
    assert counted.index(0, 5) == 5


def test_notes_are_plain(recorder: Recorder) -> None:
    recorder.tell("set_uuids", ({b"\x01": 3}, True))
    recorder.tell("set_uuids", ({b"\x01": 3}, True))
    recorder.tell("forget_processes", ({4, 2}, 1))
    recorder.writer.close()
    found = [(frame.head["note"], frame.head["said"]) for frame in frames(recorder.writer.path)]
    assert found == [("set_uuids", [[["01", 3]], True]), ("forget_processes", [[2, 4], 1])]
    assert plain(frozenset({(2, 1)})) == [[2, 1]]


def test_the_simulated_gpu_replayed_comes_to_its_truth() -> None:
    """Whatever the account of now does: it is as near to the truth as that of then was, or nearer."""
    found, begin_ns, end_ns = totals(Playback(SIMULATED))
    charged = {one.tenant: one.replayed_ns / MS for one in found.values()}
    assert end_ns - begin_ns > 3e9
    assert charged.keys() == SIMULATED_MS.keys()
    for tenant, truth_ms in SIMULATED_MS.items():
        assert charged[tenant] == pytest.approx(truth_ms, rel=0.04, abs=10), tenant
