"""The GPU plan: time limits of its parts, their records, and resuming."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks.gpu.archive import pack, unpack
from benchmarks.gpu.ledger import Ended, Ledger
from benchmarks.gpu.lines import append_line, read_figures, read_lines
from benchmarks.gpu.parts import Part
from benchmarks.gpu.process import end_leftover
from benchmarks.gpu.schedule import RUNNING, in_order, run_parts

ROOT = Path(__file__).parents[2]
SETTINGS = {"device": "cpu"}
FIGURE = "import json, sys; print(json.dumps({'seen': 1}), file=open(sys.argv[1], 'w'))"


def part(name: str, code: str, *, estimate_s: float = 1, limit_s: float = 60, **more: Any) -> Part:
    """A part that runs some Python, given the file of its figures."""

    def command(folder: Path, seconds: float) -> list[str]:
        return [sys.executable, "-c", code, str(folder / "figures.jsonl")]

    return Part(name, "nothing", estimate_s, limit_s, command, read_figures, **more)


def run(parts: list[Part], out: Path, seconds: float = 60) -> tuple[dict[str, Ended], list[str]]:
    """Run the parts; returns their records and the printed lines."""
    ledger, said = Ledger(out / "parts.jsonl", SETTINGS), list[str]()
    run_parts(parts, ledger, out, seconds=seconds, settings=SETTINGS, say=said.append)
    return ledger.ended(), said


def assert_eventually(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still false after {seconds:g} s"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_part_leaves_a_line_with_its_figures_when_it_ends(tmp_path: Path) -> None:
    ended, _ = run([part("one", f"{FIGURE}; import time; time.sleep(0.2)")], tmp_path)
    one = ended["one"]
    assert (one.status, one.reason, one.figures) == ("ok", None, {"seen": 1})
    (line,) = read_lines(tmp_path / "parts.jsonl")
    assert line["part"] == "one" and line["seconds"] >= 0.2 and line["settings"] == SETTINGS


def test_a_part_that_fails_says_why_and_keeps_what_it_measured(tmp_path: Path) -> None:
    code = f"{FIGURE}; print('no such kernel'); sys.exit(3)"
    ended, said = run([part("bad", code), part("good", FIGURE)], tmp_path)
    bad = ended["bad"]
    assert (bad.status, bad.reason) == ("failed", "exit status 3: no such kernel")
    assert bad.figures == {"seen": 1}
    assert ended["good"].status == "ok"
    assert any("no such kernel" in line for line in said)


def test_a_crash_is_told_by_its_signal(tmp_path: Path) -> None:
    code = "import os; os.kill(os.getpid(), 11)"
    assert run([part("bad", code)], tmp_path)[0]["bad"].reason == "killed by signal 11"


def test_figures_that_cannot_be_read_fail_the_part(tmp_path: Path) -> None:
    def read(folder: Path) -> Mapping[str, Any]:
        raise ValueError("half a file")

    one = part("one", FIGURE)
    broken = Part(one.name, one.settles, 1, 60, one.command, read)
    ended = run([broken], tmp_path)[0]["one"]
    assert ended.status == "failed" and "half a file" in str(ended.reason)


def test_at_its_limit_a_part_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    code = (
        f"{FIGURE}\nimport subprocess, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(600)"
    )
    ended, _ = run([part("slow", code, limit_s=3), part("next", FIGURE)], tmp_path)
    slow = ended["slow"]
    assert slow.status == "timeout" and 3 <= slow.seconds < 60
    assert str(slow.reason).startswith("killed at its limit of 3 s")
    assert slow.figures == {"seen": 1}
    child = int((tmp_path / "slow" / "log.txt").read_text())
    assert_eventually(lambda: not is_alive(child))
    assert ended["next"].status == "ok"


def test_processes_that_a_part_leaves_running_are_killed(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid)"
    )
    run([part("one", code)], tmp_path)
    child = int((tmp_path / "one" / "log.txt").read_text())
    assert_eventually(lambda: not is_alive(child))


def test_a_part_begins_only_if_its_estimate_fits_and_ends_with_the_time(tmp_path: Path) -> None:
    parts = [
        part("long", FIGURE, estimate_s=50),
        part("short", "import time; time.sleep(600)", estimate_s=1),
    ]
    ended, said = run(parts, tmp_path, seconds=4)
    assert list(ended) == ["short"]
    assert ended["short"].status == "timeout" and ended["short"].seconds < 60
    assert said[0] == "long: postponed, needs 50 s and 4 s are left"


def test_finished_parts_are_skipped_and_failed_ones_tried_again_last(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    once = f"import sys, pathlib; sys.exit(not pathlib.Path({str(flag)!r}).exists())"
    parts = [part("a", FIGURE), part("flaky", once)]
    assert run(parts, tmp_path)[0]["flaky"].status == "failed"
    flag.touch()
    parts.append(part("new", FIGURE))
    assert [one.name for one in in_order(parts, run([], tmp_path)[0])] == ["new", "flaky"]
    ended, _ = run(parts, tmp_path)
    assert {name: one.status for name, one in ended.items()} == dict.fromkeys(
        ("a", "flaky", "new"), "ok"
    )
    names = [line["part"] for line in read_lines(tmp_path / "parts.jsonl")]
    assert names == ["a", "flaky", "new", "flaky"]
    (said,) = run(parts, tmp_path)[1]
    assert said.startswith("Every part is finished")


def test_a_part_measured_with_other_settings_is_not_finished(tmp_path: Path) -> None:
    run([part("one", FIGURE)], tmp_path)
    assert Ledger(tmp_path / "parts.jsonl", {"device": "cuda"}).ended() == {}


def test_figures_that_only_an_earlier_try_has_are_kept(tmp_path: Path) -> None:
    run([part("one", f"{FIGURE}; sys.exit(1)")], tmp_path)
    ended, _ = run([part("one", "import sys; sys.exit(1)")], tmp_path)
    assert ended["one"].figures == {"seen": 1}


def test_a_part_that_cannot_be_run_is_left_out_with_its_reason(tmp_path: Path) -> None:
    ended, said = run([part("one", FIGURE, unavailable_reason="needs a checkout")], tmp_path)
    assert ended == {} and said == ["one: skipped, needs a checkout"]


KILLED = """
import signal, sys
from pathlib import Path
from tests.benchmarks.test_gpu_plan import FIGURE, part, run
slow = "print('here', flush=True); import time; time.sleep(600)"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
run([part("first", FIGURE), part("slow", slow), part("last", FIGURE)], Path(sys.argv[1]))
"""


def begin(out: Path) -> subprocess.Popen[bytes]:
    """Start the same parts in another process, and wait for the second part."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(out)], env=env, cwd=ROOT)
    log = out / "slow" / "log.txt"
    assert_eventually(lambda: log.exists() and log.read_text() and (out / RUNNING).exists())
    return process


def test_a_kill_loses_the_running_part_alone_and_a_later_call_goes_on(tmp_path: Path) -> None:
    process = begin(tmp_path)
    left = json.loads((tmp_path / RUNNING).read_text())["pid"]
    process.kill()
    process.wait()
    assert is_alive(left)
    assert [line["part"] for line in read_lines(tmp_path / "parts.jsonl")] == ["first"]
    quick = [part(name, FIGURE) for name in ("first", "slow", "last")]
    ended, _ = run(quick, tmp_path)
    assert_eventually(lambda: not is_alive(left))
    assert [one.status for one in ended.values()] == ["ok"] * 3
    names = [line["part"] for line in read_lines(tmp_path / "parts.jsonl")]
    assert names == ["first", "slow", "last"]


def test_an_interrupt_ends_the_running_part(tmp_path: Path) -> None:
    process = begin(tmp_path)
    left = json.loads((tmp_path / RUNNING).read_text())["pid"]
    process.send_signal(signal.SIGINT)
    process.wait()
    assert_eventually(lambda: not is_alive(left))
    assert not (tmp_path / RUNNING).exists()


def test_a_command_that_is_terminated_ends_the_running_part(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--only", "doctor"]
    process = subprocess.Popen([*command, "--out", str(tmp_path)], cwd=ROOT)
    assert_eventually((tmp_path / RUNNING).exists, 300)
    assert_eventually(lambda: (tmp_path / RUNNING).read_text())
    left = json.loads((tmp_path / RUNNING).read_text())["pid"]
    process.terminate()
    assert process.wait() == 143
    assert_eventually(lambda: not is_alive(left))
    assert not (tmp_path / "parts.jsonl").exists()


def test_a_process_that_reuses_a_number_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / RUNNING
    path.write_text(json.dumps({"pid": os.getpid(), "started": 1.0}))
    end_leftover(path)
    assert not path.exists()


def test_a_truncated_line_loses_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "parts.jsonl"
    append_line(path, {"part": 1})
    with path.open("a") as file:
        file.write('{"part": 2, "fig')
    append_line(path, {"part": 3})
    assert read_lines(path) == [{"part": 1}, {"part": 3}]


def test_the_folders_of_all_parts_travel_as_one_file(tmp_path: Path) -> None:
    work, archive = tmp_path / "work", tmp_path / "runs.tar.gz"
    (work / "one" / "all").mkdir(parents=True)
    (work / "one" / "all" / "run.json").write_text("{}")
    pack(work, archive)
    other = tmp_path / "other"
    (other / "two").mkdir(parents=True)
    unpack(archive, other)
    assert (other / "one" / "all" / "run.json").read_text() == "{}"
    (other / "one" / "all" / "run.json").write_text("newer")
    unpack(archive, other)
    assert (other / "one" / "all" / "run.json").read_text() == "newer"
    pack(other, archive)
    with tarfile.open(archive) as file:
        assert {name.partition("/")[0] for name in file.getnames()} == {"one", "two"}
