"""Methods that gain speed by other means than drafting, and a run of one on a small model."""

import copy
import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from msgspec import structs
from torch import Tensor

from specbench.audit.drafters import Plain
from specbench.data.prompts import Prompt
from specbench.engine.accept import select
from specbench.engine.clock import DeviceClock
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree
from specbench.log.backend import HookTimes
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.measure.base import SetupInfo
from specbench.measure.local.fingerprint import Fingerprint
from specbench.measure.session import run_plan
from specbench.measure.spec import RunSpec
from specbench.models.templates import Message
from specbench.types import Request
from tests.support.backend import FakeSetup, Words, answering, fake_plan
from tests.support.models import engine_backend, random_llama
from tests.support.watching import Watcher

BANDWIDTH = "specbench.machine.bandwidth.bandwidth"
"""Replaced in runs, since measuring it takes half a second and no cheat changes it."""
OUTER_CLOCK = "specbench.measure.local.engine.outer_clock"
CACHE = "specbench.machine.bandwidth.cache_bytes"
"""Replaced in runs, so that no cache counts as holding the small model and its baseline is
judged."""
BUDGET, MOST = 24, 8
TEXTS = [" ".join(str(3 + (7 * i + 5 * j) % 40) for j in range(6 + i % 3)) for i in range(24)]
PROMPTS = [tuple(map(int, text.split())) for text in TEXTS]


class Honest(Drafter):
    """A method that guesses the last token again."""

    def propose(self, state: State) -> DraftTree:
        return state.chain([state.pending, state.pending])


class Remembers(Honest):
    """A method that drafts the answer that it gave to the same prompt before."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        self.answers = answers

    def propose(self, state: State) -> DraftTree:
        start = len(state.token_ids)
        draft = self.remembered(state)[start : start + MOST]
        return state.chain(draft or [state.pending] * 2)

    def remembered(self, state: State) -> list[int]:
        """The longest known beginning of the answer, after its prompt."""
        return self.answers.get(state.request.prompt_ids, [])

    def observe(self, state: State, result: StepResult) -> None:
        before = self.answers.get(state.request.prompt_ids, [])
        self.answers[state.request.prompt_ids] = max(before, list(state.token_ids), key=len)


class Peeks(Remembers):
    """A method that drafts vanilla's answer, which it reads from the run's folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__({})
        self.folder = folder

    def remembered(self, state: State) -> list[int]:
        lines = (self.folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
        prompt_ids, begun = state.request.prompt_ids, list(state.token_ids)
        for record in map(json.loads, lines[-2:]):
            answer = [*prompt_ids, *record["token_ids"]]
            if record["method"] == "vanilla" and answer[: len(begun)] == begun:
                return answer
        return []


class StopsTheClock(Honest):
    """A method that stops the loop's clock while it drafts."""

    hidden_s = 0.0

    def propose(self, state: State) -> DraftTree:
        began = time.perf_counter()
        time.sleep(0.002)
        tree = super().propose(state)
        StopsTheClock.hidden_s += time.perf_counter() - began
        return tree

    @staticmethod
    def now(clock: DeviceClock | None) -> float:
        return time.perf_counter() - StopsTheClock.hidden_s


def two_best(tree: DraftTree, logits: Tensor, sampler: Sampler) -> Tensor:
    """A rule that accepts the best two tokens."""
    best = logits.topk(2).indices
    n = tree.num_nodes
    accepted = torch.zeros(n, dtype=torch.bool)
    accepted[1:] = (best[:-1] == tree.tokens[1:, None]).any(-1)
    return select(tree, accepted, best[:, 0])


class DecodesInBuild(Remembers):
    """A method that decodes the prompts of the run when it is built."""

    def __init__(
        self, target: Target, prompts: Sequence[tuple[int, ...]], seconds: float = 0.0
    ) -> None:
        time.sleep(seconds)  # stands for more prompts
        super().__init__({})
        for prompt in prompts:
            done = decode(target, Plain(), Request(prompt, BUDGET))
            self.answers[prompt] = [*prompt, *done.token_ids]


class WorksInTheWarmUp(Remembers):
    """A method that decodes the prompts of the run in its first draft, during the warm-up."""

    def __init__(self, target: Target, seconds: float) -> None:
        super().__init__({})
        self.target, self.seconds = target, seconds

    def propose(self, state: State) -> DraftTree:
        if not self.answers:
            self.answers = DecodesInBuild(self.target, PROMPTS, self.seconds).answers
        return super().propose(state)


class KeepsFiles(Remembers):
    """A method that keeps its answers in files, by the hash of the prompt."""

    def __init__(self, folder: Path) -> None:
        super().__init__({})
        self.folder = folder

    def remembered(self, state: State) -> list[int]:
        with suppress(FileNotFoundError):
            kept: list[int] = json.loads(self.path(state).read_text(encoding="utf-8"))
            return kept
        return []

    def observe(self, state: State, result: StepResult) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        longest = max(self.remembered(state), list(state.token_ids), key=len)
        self.path(state).write_text(json.dumps(longest), encoding="utf-8")

    def path(self, state: State) -> Path:
        digest = hashlib.sha256(repr(state.request.prompt_ids).encode()).hexdigest()
        return self.folder / f"{digest}.json"


class RemembersSeldom(Remembers):
    """A method that uses its memory in one of forty steps."""

    num_steps = 0

    def remembered(self, state: State) -> list[int]:
        self.num_steps += 1
        return super().remembered(state) if self.num_steps % 40 == 0 else []


class DecodesInAThread(Remembers):
    """A method that decodes the run's prompts with a copy of the target while others are timed."""

    def __init__(self, target: Target) -> None:
        super().__init__({})
        self.target = Target(copy.deepcopy(target.model))
        threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        for prompt in PROMPTS:
            done = decode(self.target, Plain(), Request(prompt, BUDGET))
            self.answers[prompt] = [*prompt, *done.token_ids]


class SlowsTheClocks(StopsTheClock):
    """A method that makes both clocks lose 80 % of the time of its steps."""

    began: float | None = None

    def start(self, state: State, prefill: Forward) -> None:
        self.began = None

    def propose(self, state: State) -> DraftTree:
        now = time.perf_counter()
        if self.began is not None:
            StopsTheClock.hidden_s += 0.8 * (now - self.began)
        self.began = now
        return Honest.propose(self, state)


class Slowed(Plain):
    """Vanilla, with steps that take longer by this share."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.began: float | None = None

    def propose(self, state: State) -> DraftTree:
        if self.began is not None and len(state.token_ids) > len(state.request.prompt_ids) + 1:
            step_s = time.perf_counter() - self.began
            until = time.perf_counter() + self.share * step_s
            while time.perf_counter() < until:
                pass
        self.began = time.perf_counter()
        return super().propose(state)


def without_last_mlp(target: Target) -> Drafter:
    """A method that leaves the target without its last MLP."""
    last: Any = target.layers[-1]
    with torch.no_grad():
        last.mlp.down_proj.weight.zero_()
    return Honest()


def under(drafter: Drafter, rule: Any) -> Drafter:
    """The drafter, with this rule of acceptance."""
    drafter.rule = rule
    return drafter


@cache
def earlier_answers() -> dict[tuple[int, ...], list[int]]:
    """The answers of an earlier run."""
    return DecodesInBuild(Target(random_llama(layers=2)), PROMPTS).answers


CHEATS: dict[str, Callable[[Target, Path], Drafter]] = {
    "honest": lambda target, folder: Honest(),
    "remembers": lambda target, folder: Remembers({}),
    "peeks": lambda target, folder: Peeks(folder),
    "stops the clock": lambda target, folder: StopsTheClock(),
    "accepts the two best": lambda target, folder: under(Honest(), two_best),
    "changes the weights": lambda target, folder: without_last_mlp(target),
    "decodes in build": lambda target, folder: DecodesInBuild(target, PROMPTS, 0.7),
    "works in the warm-up": lambda target, folder: WorksInTheWarmUp(target, 1.5),
    "keeps files": lambda target, folder: KeepsFiles(folder.with_name("kept")),
    "remembers seldom": lambda target, folder: RemembersSeldom({}),
    "decodes in a thread": lambda target, folder: DecodesInAThread(target),
    "has the answers": lambda target, folder: Remembers({**earlier_answers()}),
    "slows both clocks": lambda target, folder: SlowsTheClocks(),
    "slows vanilla by 8 %": lambda target, folder: Honest(),
    "slows vanilla by 30 %": lambda target, folder: Honest(),
}
VANILLA = {
    "slows vanilla by 8 %": lambda: Slowed(0.08),
    "slows vanilla by 30 %": lambda: Slowed(0.3),
}
"""Vanilla's drafter beside cheats that replace it."""


class Numbers(Words):
    """A codec whose text is token ids."""

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(map(int, messages[-1]["content"].split()))

    def text(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


class OnOurEngine(FakeSetup):
    """The setup of a small model, vanilla and a method "cheat"."""

    build: Callable[[Target, Path], Drafter]
    vanilla: Callable[[], Drafter] = Plain

    def describe(self) -> SetupInfo:
        about = super().describe()
        methods = {
            label: structs.replace(method, is_repeatable=True)
            for label, method in about.methods.items()
        }
        model = structs.replace(about.model, dtype="float32")
        return structs.replace(about, model=model, methods=methods)

    def open(self, folder: Path, before: RunHeader | None = None) -> Any:
        target = Target(random_llama(layers=2))
        weights = Fingerprint(target.model)
        began = time.perf_counter()
        drafters = {"vanilla": self.vanilla(), "cheat": self.build(target, folder)}
        hooks = {"cheat": HookTimes(time.perf_counter() - began)}
        return engine_backend(target, drafters, is_metered=True, hooks=hooks, weights=weights)


def cheating_run(name: str, folder: Path, *, repeats: int = 2, num_prompts: int = 12) -> Run:
    """A run of vanilla and a cheat."""
    setup = OnOurEngine({"vanilla": answering(1), "cheat": answering(1)}, codec=Numbers())
    setup.build = CHEATS[name]
    setup.vanilla = VANILLA.get(name, Plain)
    earlier_answers()  # before anything is timed
    texts = TEXTS[:num_prompts]
    prompts = {"maths": [Prompt(f"maths/{i}", "", (text,)) for i, text in enumerate(texts)]}
    plan = fake_plan(setup.methods, prompts, RunSpec(repeats=repeats))
    plan = replace(plan, setup=setup, max_new_tokens=BUDGET)
    with ExitStack() as stack:
        stack.enter_context(mock.patch(BANDWIDTH, lambda *given: 1e9))
        stack.enter_context(mock.patch(CACHE, lambda *given: 0))
        if name in ("stops the clock", "slows both clocks"):
            stack.enter_context(mock.patch.object(DeviceClock, "now", StopsTheClock.now))
        if name == "slows both clocks":
            stack.enter_context(mock.patch(OUTER_CLOCK, lambda: StopsTheClock.now(None)))
        return run_plan(plan, folder, Watcher(), given=())
