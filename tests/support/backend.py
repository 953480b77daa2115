"""A backend without a model. Completions come from functions and take no time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from specbench.data.prompts import Prompt, PromptSet
from specbench.data.tasks import Task
from specbench.log.header import RunHeader
from specbench.log.methods import MethodHeader
from specbench.log.model import ModelHeader
from specbench.measure.base import BackendInfo, Log, Plan, Progress, SetupInfo
from specbench.measure.runner import Runner
from specbench.measure.spec import RunSpec
from specbench.models.templates import Message
from specbench.types import Completion, Record, Request, Step

Answer = Callable[[Request], Completion]


def answering(number: int, decode_s: float = 0.2) -> Answer:
    """A fake method that answers every request with this token and EOS."""
    return lambda request: Completion((number, 0), "eos", (Step(1, 1),), 0.1, decode_s)


class Words(Any):
    """A codec whose tokens count the messages of a chat."""

    eos_ids = frozenset({0})
    end_id = 0
    vocab_size = 0

    def __init__(self) -> None:
        self.rendered: list[list[Message]] = []

    def beyond_text(self, token_ids: Sequence[int]) -> str:
        return ""

    def control_tokens(self, text: str) -> tuple[str, ...]:
        return ("</s>",) * ("</s>" in text)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        self.rendered.append(list(messages))
        return tuple(range(1, 1 + len(messages)))

    def text(self, token_ids: Sequence[int]) -> str:
        return f"answer {token_ids[0]}" if token_ids else ""

    def reply(self, record: Record) -> Message:
        return {"role": "assistant", "content": record.text}

    def token_ids(self, text: str) -> tuple[int, ...]:
        return tuple(int(word) for word in text.split()[1:])


class FakeBackend:
    """A backend that completes requests with functions, and keeps the requests."""

    def __init__(self, methods: Mapping[str, Answer]) -> None:
        self._methods = methods
        self.warmed_up: list[Request] = []
        self.remembered: list[str] = []
        self.is_open = False

    def __enter__(self) -> Self:
        self.is_open = True
        return self

    def __exit__(self, *exception: object) -> None:
        self.is_open = False

    def describe(self, records: Sequence[Record] = ()) -> BackendInfo:
        return BackendInfo()

    def warm_up(self, requests: Sequence[Request]) -> None:
        self.warmed_up += requests

    def runner(self, plan: Plan, log: Log, progress: Progress) -> Runner:
        return Runner(plan, self, log, progress)

    def complete(self, method: str, request: Request) -> Completion:
        assert self.is_open, "a backend completes only while it is open"
        return self._methods[method](request)

    def remember(self, method: str) -> None:
        self.remembered.append(method)

    def forget(self) -> None:
        self.remembered.append("")


@dataclass
class FakeSetup:
    """The setup of a fake backend, without a device, a dtype and weights."""

    methods: Mapping[str, Answer]
    no_checkpoint: tuple[str, ...] = ()
    codec: Any = field(default_factory=Words)
    context: int | None = None
    title: str = "a fake model"

    def __post_init__(self) -> None:
        self.backend = FakeBackend(self.methods)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.methods)

    def describe(self) -> SetupInfo:
        model = ModelHeader(name="fake", label="Fake", source="fake", dtype="none")
        return SetupInfo(model, {label: _header(label) for label in self.methods})

    def open(self, folder: Path, before: RunHeader | None = None) -> FakeBackend:
        return self.backend


def fake_plan(
    methods: Mapping[str, Answer], prompts: Mapping[str, Sequence[Prompt]], spec: RunSpec | None
) -> Plan:
    """A plan for these methods and these prompts, which are given by task."""
    sets = tuple(
        PromptSet(
            Task(task, task), "file", "a test", None, len(prompts_of_task), tuple(prompts_of_task)
        )
        for task, prompts_of_task in prompts.items()
    )
    return Plan(spec or RunSpec(), FakeSetup(methods), sets, 16)


def backend_of(plan: Plan) -> FakeBackend:
    """The backend of a fake plan."""
    assert isinstance(plan.setup, FakeSetup)
    return plan.setup.backend


def _header(label: str) -> MethodHeader:
    return MethodHeader(
        name=label.partition(":")[0], title=label, options={}, is_lossless=True, weights=None
    )
