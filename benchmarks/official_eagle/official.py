"""The official code in its own process, with functions that complete requests.

Knows the worker and the checkout, not the weights.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.official_eagle.turns import METHODS, Complete, Sample
from specbench.errors import UserError
from specbench.types import Completion, Request, Step, StopReason

REPOSITORY = "https://github.com/SafeAILab/EAGLE"
WARM_UPS = 3
"""Warm-up runs per method of the official code, as in its own evaluation scripts."""

_WORKER = Path(__file__).with_name("worker.py")
_PACKAGES = "transformers==4.53.3 tokenizers==0.21.4 huggingface_hub==0.36.2"
_HINT = (
    "It needs transformers 4.53: give --python an interpreter that has it, or --site a FOLDER made "
    f"by `pip install --no-deps --target FOLDER {_PACKAGES}`."
)


class Official:
    """The official code in its process, which ends with the `with` block."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._log = given.output / "official.log"
        self._lengths: dict[tuple[int, ...], list[int]] = {}
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        if given.site:
            environment["PYTHONPATH"] = str(given.site.resolve())
        command = [given.python, str(_WORKER), str(given.checkout.resolve())]
        try:
            with self._log.open("w", encoding="utf-8") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                    env=environment,
                )  # fmt: skip
        except OSError as error:
            reason = error.strerror or str(error)
            hint = "Give the path of a Python interpreter."
            raise UserError(f"--python {given.python} does not run: {reason}.", hint) from error
        try:
            what = f"{given.python} cannot import the official code"
            self.versions: dict[str, str] = self._answer(what, _HINT)
        except UserError:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def load(self, **arguments: Any) -> None:
        """Load target and head with the arguments of the worker's `load`."""
        self._ask("load", "The official code cannot load the weights", **arguments)

    def warm_up(self, samples: Sequence[Sample]) -> None:
        """Run every method a few times, and read the accept lengths of each sample's steps."""
        for method in list(METHODS) * WARM_UPS:
            self._generate(method, samples[0].request)
        for sample in samples:
            request = sample.request
            self._lengths[request.prompt_ids] = self._ask(
                "accepted", "The official code fails", prompt_ids=request.prompt_ids,
                max_new_tokens=request.max_new_tokens,
            )  # fmt: skip

    def completer(self, method: str) -> Complete:
        """A function that completes requests; their decoding time includes the prefill."""

        def complete(request: Request) -> Completion:
            answer = self._generate(method, request)
            token_ids = answer["token_ids"]
            lengths = [1] * len(token_ids)
            if method != "vanilla":
                lengths = self._lengths[request.prompt_ids]
            return official_completion(token_ids, lengths, answer["seconds"], request.eos_ids)

        return complete

    def _generate(self, method: str, request: Request) -> dict[str, Any]:
        answer: dict[str, Any] = self._ask(
            "generate", "The official code fails", method=method, prompt_ids=request.prompt_ids,
            max_new_tokens=request.max_new_tokens,
        )  # fmt: skip
        return answer

    def _ask(self, call: str, what: str, **arguments: Any) -> Any:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # the missing answer gives the reason
            print(json.dumps({"call": call, **arguments}), file=self._process.stdin, flush=True)
        return self._answer(what, f"Its whole output is in {self._log}.")

    def _answer(self, what: str, hint: str) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {}
        if "ok" in answer:
            return answer["ok"]
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        reason = answer.get("error") or (lines[-1] if lines else "it printed nothing")
        raise UserError(f"{what}: {reason}", hint)


def official_completion(
    token_ids: Sequence[int], lengths: Sequence[int], seconds: float, eos_ids: frozenset[int]
) -> Completion:
    """The official code's completion, without tokens after EOS.

    `lengths` of the steps come from a separate run, and are dropped if that run differs.
    """
    ends = (i + 1 for i, token in enumerate(token_ids) if token in eos_ids)
    count = next(ends, len(token_ids))
    steps: list[Step] = []
    if sum(lengths) == len(token_ids):
        left = count
        for length in lengths:
            steps.append(Step(0, min(length, left)))
            left -= steps[-1].accept_length
    reason: StopReason = "eos" if token_ids[count - 1] in eos_ids else "budget"
    return Completion(tuple(token_ids[:count]), reason, tuple(steps), 0.0, seconds)


def describe_checkout(folder: Path) -> dict[str, Any]:
    """Commit and contents of a checkout of the official code.

    Raises:
        UserError: the folder is not such a checkout.
    """
    files = sorted((folder / "eagle" / "model").glob("*.py"))
    if not (folder / "eagle" / "model" / "ea_model.py").is_file():
        reason = (
            "it has no eagle/model/ea_model.py" if folder.is_dir() else "there is no such folder"
        )
        hint = f"`git clone {REPOSITORY}` makes one."
        raise UserError(f"--checkout {folder} is not a checkout of EAGLE: {reason}.", hint)
    contents = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    commit = changes = None
    if (folder / ".git").exists():
        commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "-s", "eagle")
    return {
        "commit": commit,
        "is_changed": None if changes is None else bool(changes),
        "sha256": contents,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
    )
    return None if done.returncode else done.stdout.strip()
