"""Attacks on training: kills, damaged files, a full disk, NaN and infinity.

Each command ends with a head or with one message. Progress is kept: a continued training ends with
the same head as an undisturbed one.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from random import Random
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from specbench.cli import main
from specbench.log.files import LineFile
from specbench.training import command
from specbench.training.loop import LogLine, TrainingPlan
from specbench.training.optimizers import Schedule
from tests.cli.conftest import Said
from tests.faults.damage import DEEP, damaged
from tests.faults.limits import file_size_limit
from tests.faults.processes import POLITE, end, start
from tests.faults.program import model_folder, specbench

TRIES = 150
NUM_STEPS, SAVE_EVERY = 6, 2
TEXTS = ("", "null", "[]", "{}", "\0" * 999, DEEP, '{"step": "a"}\n', '{"step": 1e999}\n', "[1]\n")


def attack(random: Random, folder: Path) -> None:
    shutil.copytree(model_folder(), folder / "model")
    (folder / "text.jsonl").write_text(_TEXT)
    random.choice(ATTACKS)(random, folder)
    assert not [*folder.rglob("*.new")], "files are left behind"


def killed(random: Random, folder: Path) -> None:
    """End a training at any moment, twice. Then let it continue to its end."""
    for number in range(2):
        how = random.choice((signal.SIGKILL, *POLITE))
        ready, said = folder / f"ready{number}", folder / f"said{number}"
        is_resumed = (folder / "head" / "training" / "settings.json").exists()
        process = start(_train_apart, folder, is_resumed, ready, said)
        code = end(process, how, ready, random.uniform(0, 0.6))
        assert code in (0, 130, -how), (how, code, said.read_text())
        assert "Traceback" not in said.read_text() and "ignored" not in said.read_text()
    _ends_well(folder)


def half_done(random: Random, folder: Path) -> None:
    """Damage a file of a half-done training."""
    _take_half(folder)
    name = random.choice(("checkpoint.pt", "log.jsonl", "settings.json"))
    place = folder / "head" / "training" / name
    whole = place.read_bytes()
    if random.random() < 0.6:
        place.write_bytes(damaged(random, whole))
    else:
        place.write_text(random.choice(TEXTS))
    before = _files(folder / "head")
    said = _train(folder, is_resumed=True)
    if said.code:
        _one_message(said, place.name, "settings")
        after = _files(folder / "head")
        if place.name == "log.jsonl":  # half a line at its end is removed
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
        assert [file.name for file in (folder / "head").iterdir()] == ["training"], (
            "a head was written"
        )
    else:  # the token is in no text
        head = torch.load(folder / "head" / "medusa_lm_head.pt")
        assert all(tensor.isfinite().all() for tensor in head.values())


ATTACKS: tuple[Callable[[Random, Path], None], ...] = (
    killed, killed, killed, half_done, half_done, half_done, full_disk, full_disk, not_finite,
)  # fmt: skip
_TEXT = "".join(f'{{"text": "cat {i} on mat {i % 3}"}}\n' for i in range(9))


def _train(folder: Path, *, is_resumed: bool = False) -> Said:
    with patch.object(command, "TrainingPlan", partial(TrainingPlan, save_every=SAVE_EVERY)):
        return specbench(*_words(is_resumed=is_resumed), folder=folder)


def _words(*, is_resumed: bool) -> list[str]:
    options = ("--steps", NUM_STEPS, "--rows", 2, "--length", 16, "--template", "none")
    names = ("--model", "model", "--data", "text.jsonl", "--out", "head", "--device", "cpu")
    return [*map(str, ("train", "medusa", *names, *options)), *["--resume"] * is_resumed]


def _train_apart(folder: Path, is_resumed: bool, ready: Path, said: Path) -> None:
    """Train in this process, which does nothing else, and write the messages to the file `said`."""
    os.chdir(folder)
    sys.stderr = said.open("w", buffering=1)
    for descriptor in (1, 2):
        os.dup2(sys.stderr.fileno(), descriptor)
    sys.argv = ["specbench", *_words(is_resumed=is_resumed)]
    patch.object(command, "TrainingPlan", partial(TrainingPlan, save_every=SAVE_EVERY)).start()
    ready.touch()
    main()


@cache
def _trained(until: int) -> Path:
    """The folder of a head, whose last checkpoint is that of the step `until`."""
    folder = Path(tempfile.mkdtemp(prefix="fault-training-"))
    shutil.copytree(model_folder(), folder / "model")
    (folder / "text.jsonl").write_text(_TEXT)

    def stop(line: LogLine) -> None:
        if int(str(line["step"])) > until:
            raise KeyboardInterrupt

    def plan(schedule: Schedule, log: LineFile, **named: object) -> TrainingPlan:
        return TrainingPlan(schedule, log, save_every=SAVE_EVERY, on_log=stop)

    # The command ends with exit code 130, which `specbench` does not allow.
    with patch.object(command, "TrainingPlan", plan), suppress(AssertionError):
        specbench(*_words(is_resumed=False), folder=folder)
    return folder / "head"


def _take_half(folder: Path) -> None:
    """Put a half-done training into the folder."""
    shutil.copytree(_trained(NUM_STEPS - SAVE_EVERY), folder / "head")
    settings = folder / "head" / "training" / "settings.json"
    values = json.loads(settings.read_text())
    values["model"] = str(folder / "model")
    settings.write_text(json.dumps(values, indent=2) + "\n")


def _ends_well(folder: Path, *, is_log_cut: bool = False) -> None:
    """Let a training continue to its end, and compare its head with that of an undisturbed
    training.

    If `is_log_cut`, the log may lack lines: a damaged line does not count.
    """
    said = _train(folder, is_resumed=(folder / "head" / "training" / "settings.json").exists())
    assert said.code == 0, said.err
    heads = (folder / "head", _trained(NUM_STEPS))
    weights, expected = (torch.load(head / "medusa_lm_head.pt") for head in heads)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights), (
        "the head has changed"
    )
    lines = (folder / "head" / "training" / "log.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    may_be_lost = (2, 4) if is_log_cut else ()
    assert steps == [step for step in (2, 4, 6) if step in steps or step not in may_be_lost], steps


def _one_message(said: Said, *words: str) -> None:
    message = said.err[said.err.index("Error: ") :]
    assert any(word in message for word in words), said.err
    assert said.err.count("Error: ") == 1 and message.count("\n") == 2, said.err
    assert "Traceback" not in said.err


def _files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
