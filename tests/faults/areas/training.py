"""Attacks on training: kills, damaged files, a full disk, NaN, another target, two at once.

Each command ends with a head or with one message, and what was trained before is kept: the
training goes on to the head of one that nothing disturbed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache, partial
from pathlib import Path
from random import Random
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from specbench.cli import main
from specbench.log.files import LineFile
from specbench.training import command
from specbench.training.loop import LogLine, Plan, Schedule
from tests.cli.conftest import Said
from tests.faults.limits import file_size_limit
from tests.faults.processes import POLITE, end, start
from tests.faults.program import model_folder, specbench
from tests.support.checkpoint import save_checkpoint

TRIES = 200
NUM_STEPS, SAVE_EVERY = 6, 2
GARBAGE = b"", b"null", b"[]", b"{}", b"\0" * 999, b"<html>", b'{"a":' * 10**5
ALMOST = b"PK\3\4", b'{"step": "a"}\n', b'{"step": 1e999}\n', b"[1]\n"


def attack(random: Random, folder: Path) -> None:
    shutil.copytree(model_folder(), folder / "model")
    (folder / "text.jsonl").write_text(_TEXT)
    random.choice(ATTACKS)(random, folder)
    assert not [*folder.rglob("*.new")], "something is left"


def killed(random: Random, folder: Path) -> None:
    """End a training at any moment, twice; then let it go on to its end."""
    for number in range(2):
        how = random.choice((signal.SIGKILL, *POLITE))
        ready, said = folder / f"ready{number}", folder / f"said{number}"
        is_resumed = (folder / "head" / "training" / "settings.json").exists()
        process = start(_train_apart, folder, is_resumed, ready, said)
        code = end(process, how, ready, random.uniform(0, 0.6))
        assert code in (0, 130, -how), (how, code, said.read_text())
        assert "Traceback" not in said.read_text() and "ignored" not in said.read_text()
    _ends_well(folder)


def damaged(random: Random, folder: Path) -> None:
    """Damage a file of a training that is half done."""
    _take_half(folder)
    name = random.choice(("checkpoint.pt", "log.jsonl", "settings.json"))
    place = folder / "head" / "training" / name
    whole = place.read_bytes()
    content, at = bytearray(whole), random.randrange(len(whole))
    how = random.randrange(5)
    if how == 0:
        del content[at:]
    elif how == 1:
        content[at] ^= 1 << random.randrange(8)
    elif how == 2:
        content[at : at + random.randrange(200)] = random.randbytes(random.randrange(200))
    elif how == 3:
        content[:] = random.choice(GARBAGE)
    else:
        content[:] = random.choice(ALMOST)
    place.write_bytes(content)
    before = _files(folder / "head")
    said = _train(folder, is_resumed=True)
    if said.code:
        _one_message(said, place.name, "settings")
        after = _files(folder / "head")
        if place.name == "log.jsonl":  # half a line at its end goes
            assert before.pop(place).startswith(after.pop(place))
        assert after == before, "a refused training has changed files"
        place.write_bytes(whole)
    _ends_well(folder, is_log_cut=not said.code and place.name == "log.jsonl")


def full_disk(random: Random, folder: Path) -> None:
    with file_size_limit(random.randrange(150_000)):
        said = _train(folder)
    if said.code:
        _one_message(said, "cannot be written")
    _ends_well(folder)


def not_finite(random: Random, folder: Path) -> None:
    """Put NaN or infinity into the target's weights."""
    weights = folder / "model" / "model.safetensors"
    tensors = load_file(weights)
    name = random.choice(sorted(tensors))
    values, wrong = tensors[name].view(-1), (torch.nan, torch.inf, -torch.inf)
    values[random.randrange(len(values))] = random.choice(wrong)
    save_file(tensors, weights, {"format": "pt"})
    said = _train(folder)
    if said.code:
        _one_message(said, "NaN or infinite", "nan", "inf")
        assert [file.name for file in (folder / "head").iterdir()] == ["training"], "a head"
    else:  # a token that no text has
        head = torch.load(folder / "head" / "medusa_lm_head.pt")
        assert all(tensor.isfinite().all() for tensor in head.values())


def other_target(random: Random, folder: Path) -> None:
    _take_half(folder)
    shutil.rmtree(folder / "model")
    save_checkpoint(folder / "model", seed=random.randrange(1, 99))
    before = _files(folder / "head")
    _one_message(_train(folder, is_resumed=True), "target_sha256")
    assert _files(folder / "head") == before
    shutil.rmtree(folder / "model")
    shutil.copytree(model_folder(), folder / "model")
    _ends_well(folder)


def two_at_once(random: Random, folder: Path) -> None:
    _take_half(folder)
    with closing(LineFile(folder / "head" / "training" / "log.jsonl")):
        _one_message(_train(folder, is_resumed=True), "Another process")
    _ends_well(folder)


def wrong_values(random: Random, folder: Path) -> None:
    flag = random.choice(("rows", "steps", "length", "seed"))
    value = random.choice((-1, -(10**9), 10**9 * 10 ** random.randrange(30)))
    said = _train(folder, f"--{flag}={value}")
    assert said.code == 2 or (flag, value) == ("seed", value)
    if said.code:
        _one_message(said, f"--{flag} {value:g} is too")


ATTACKS: tuple[Callable[[Random, Path], None], ...] = (
    killed, killed, killed, damaged, damaged, damaged, full_disk, full_disk, not_finite,
    other_target, two_at_once, wrong_values,
)  # fmt: skip
_TEXT = "".join(f'{{"text": "cat {i} on mat {i % 3}"}}\n' for i in range(9))


def _train(folder: Path, *more: str, is_resumed: bool = False) -> Said:
    with patch.object(command, "Plan", partial(Plan, save_every=SAVE_EVERY)):
        return specbench(*_words(is_resumed=is_resumed), *more, folder=folder)


def _words(*, is_resumed: bool) -> list[str]:
    options = ("--steps", NUM_STEPS, "--rows", 2, "--length", 16, "--template", "none")
    names = ("--model", "model", "--data", "text.jsonl", "--out", "head", "--device", "cpu")
    return [*map(str, ("train", "medusa", *names, *options)), *["--resume"] * is_resumed]


def _train_apart(folder: Path, is_resumed: bool, ready: Path, said: Path) -> None:
    """Train in this process, which is there for it, with its words in the file `said`."""
    os.chdir(folder)
    sys.stderr = said.open("w", buffering=1)
    for descriptor in (1, 2):
        os.dup2(sys.stderr.fileno(), descriptor)
    sys.argv = ["specbench", *_words(is_resumed=is_resumed)]
    patch.object(command, "Plan", partial(Plan, save_every=SAVE_EVERY)).start()
    ready.touch()
    main()


@cache
def _trained(until: int) -> Path:
    """The folder of a head whose last checkpoint is that of the step `until`."""
    folder = Path(tempfile.mkdtemp(prefix="fault-training-"))
    shutil.copytree(model_folder(), folder / "model")
    (folder / "text.jsonl").write_text(_TEXT)

    def stop(line: LogLine) -> None:
        if int(str(line["step"])) > until:
            raise KeyboardInterrupt

    def plan(schedule: Schedule, log: LineFile, **named: object) -> Plan:
        return Plan(schedule, log, save_every=SAVE_EVERY, on_log=stop)

    with patch.object(command, "Plan", plan), suppress(AssertionError):  # of the exit code 130
        specbench(*_words(is_resumed=False), folder=folder)
    return folder / "head"


def _take_half(folder: Path) -> None:
    """Put a training that is half done into the folder."""
    shutil.copytree(_trained(NUM_STEPS - SAVE_EVERY), folder / "head")
    settings = folder / "head" / "training" / "settings.json"
    values = json.loads(settings.read_text())
    values["model"] = str(folder / "model")
    settings.write_text(json.dumps(values, indent=2) + "\n")


def _ends_well(folder: Path, *, is_log_cut: bool = False) -> None:
    """Let a training go on to its end, which is the head of one that nothing disturbed.

    `is_log_cut` allows a log that lost lines: half a line, or one with another step, is none.
    """
    said = _train(folder, is_resumed=(folder / "head" / "training" / "settings.json").exists())
    assert said.code == 0, said.err
    heads = (folder / "head", _trained(NUM_STEPS))
    found, expected = (torch.load(head / "medusa_lm_head.pt") for head in heads)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found), "another head"
    lines = (folder / "head" / "training" / "log.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    may_be_lost = (2, 4) if is_log_cut else ()
    assert steps == [one for one in (2, 4, 6) if one in steps or one not in may_be_lost], steps


def _one_message(said: Said, *words: str) -> None:
    message = said.err[said.err.index("Error: ") :]
    assert any(word in message for word in words), said.err
    assert said.err.count("Error: ") == 1 and message.count("\n") == 2, said.err
    assert "Traceback" not in said.err


def _files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
