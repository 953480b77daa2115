"""specbench from Python: models that complete prompts, and runs, new or stored, as data frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.errors import UserError, unknown_name
from specbench.log.options import options
from specbench.log.spec import SpecValues
from specbench.machine.threads import wait_briefly
from specbench.types import Completion, Request

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

    from specbench.log.run import Run as LogRun
    from specbench.measure.local.engine import EngineBackend
    from specbench.measure.local.engine_setup import EngineSetup


@dataclass(frozen=True, slots=True, repr=False)
class Generation:
    """The answer that `generate` returns, with its tokens, steps and times."""

    text: str
    prompt_ids: tuple[int, ...]
    completion: Completion

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 40 else f"{self.text[:39]}…"
        return (
            f"<Generation {text!r}: {self.completion.num_tokens} tokens in {self.num_steps} steps, "
            f"MAT {self.mean_accepted_tokens:.2f}, {self.tokens_per_s:.0f} tokens/s>"
        )

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The new tokens, EOS included."""
        return self.completion.token_ids

    @property
    def num_steps(self) -> int:
        """Target forwards after the prefill."""
        return len(self.completion.steps)

    @property
    def mean_accepted_tokens(self) -> float:
        """Mean tokens emitted per step; 1 if there was no step."""
        return sum(self.completion.accept_lengths) / self.num_steps if self.num_steps else 1.0

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second of wall time, prefill included."""
        return self.completion.num_tokens / self.completion.wall_s


class LoadedModel:
    """A target on its device with one method's drafter; see `load`."""

    def __init__(self, setup: EngineSetup, backend: EngineBackend) -> None:
        self._setup, self._backend = setup, backend

    def __repr__(self) -> str:
        return f"<LoadedModel {self._setup.title}: {self._setup.labels[0]}>"

    def generate(
        self,
        prompt: str | Sequence[dict[str, str]] | None = None,
        *,
        input_ids: Sequence[int] | Tensor | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        max_new_tokens: int = 512,
        seed: int = 0,
    ) -> Generation:
        """Complete one prompt.

        Args:
            prompt: a text, or chat messages (`role`, `content`), rendered by the model's template.
            input_ids: prompt tokens instead, used as they are: [tokens] or [1, tokens].
            temperature: 0 is greedy.
            top_p: nucleus sampling; 1 is off.
            top_k: sampling among the k most likely tokens; 0 is off.
            max_new_tokens: the budget; EOS may end the answer earlier.
            seed: seed of every draw for this prompt.

        Raises:
            UserError: neither or both of `prompt` and `input_ids`, a prompt that does not fit, or
                a value that is out of range.
        """
        if (prompt is None) == (input_ids is None):
            raise UserError("generate takes a prompt or input_ids.", "Give exactly one of them.")
        codec = self._setup.codec
        if input_ids is not None:
            ids = _flat(input_ids)
        else:
            chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            ids = codec.render(chat or ())
        from specbench.measure.spec import make_spec

        spec = make_spec(
            temperatures=temperature,
            top_p=top_p,
            top_k=top_k,
            max_new_tokens=max_new_tokens,
            seed=seed,
        )
        request = Request(ids, max_new_tokens, spec.sampling(temperature), codec.eos_ids, seed)
        done = self._backend.complete(self._setup.labels[0], request)
        return Generation(codec.text(done.token_ids), ids, done)


def load(
    model: str = "tiny", method: str = "vanilla", *, offline: bool = False, **values: Any
) -> LoadedModel:
    """Load a model and a method by their names on the command line.

    `load("vicuna-13b", method="eagle2:depth=5").generate("Hello", temperature=0.5)`

    Args:
        model: a known model, a folder or a Hub id.
        method: a method, with options.
        offline: use no network.
        values: further options of the model, as on the command line: `device`, `dtype`,
            `quantize`, `template`, `weights`, `kernels`, and `threads`, the number of CPU threads
            of one operation; None takes the fastest for a step.

    Raises:
        UserError: an unknown name or option, a missing file, or too little memory.
    """
    wait_briefly()
    from specbench.measure.local.engine import EngineBackend
    from specbench.measure.local.engine_setup import make_engine_setup
    from specbench.measure.spec import make_spec

    known = [option.name for option in options(SpecValues) if option.group == "model"]
    for name in values:
        if name not in known:
            raise unknown_name("value", name, known)
    with _quiet_libraries():
        spec = make_spec(model=model, methods=method, is_baseline_run=False, **values)
        setup = make_engine_setup(spec, is_offline=offline)
        if len(setup.methods) != 1:
            raise UserError(f"{method!r} names {len(setup.methods)} methods.", "Name one.")
        return LoadedModel(setup, EngineBackend(setup).__enter__())


class Run:
    """A stored run as data frames; see `read_run`."""

    def __init__(self, run: LogRun) -> None:
        self._run = run
        self.path, self.header, self.records = run.folder, run.header, run.records

    def __repr__(self) -> str:
        model, status = self.header.model.label, self.header.status
        return f"<Run {self.header.id}: {model}, {len(self.records)} records, {status}>"

    @cached_property
    def samples(self) -> DataFrame:
        """One row a record, in the order they ran; `analysis.frames.records_frame` has the columns.

        Seconds are floats; NaN stands for a time that was not measured.
        """
        from specbench.analysis.records import records_frame

        return records_frame(self.records)

    @cached_property
    def summary(self) -> DataFrame:
        """One row a cell (method, temperature, task), with intervals and reasons for gaps.

        `analysis.frames.summary_frame` has the columns. A run on servers at several loads has
        one row a cell and load, with the columns `concurrency` and `request_rate`.
        """
        import pandas as pd

        from specbench.analysis.frames import summary_frame
        from specbench.analysis.metrics import measure

        run = self._run
        frames = {load: summary_frame(measure(run.at(load))) for load in run.loads}
        if len(frames) == 1:
            return next(iter(frames.values()))
        labelled = [frame.assign(**load._asdict()) for load, frame in frames.items()]
        return pd.concat(labelled, ignore_index=True)


def read_run(path: str | Path) -> Run:
    """Read the run in a folder.

    `read_run("results/runs/RUN").summary.query("task == 'mean'")[["method", "speedup", "mat"]]`

    Raises:
        RunFolderError: the folder has no run, or a file is damaged or of a newer schema.
    """
    from specbench.log.store import read_run as read_stored

    return Run(read_stored(Path(path)))


def run(
    model: str = "tiny",
    methods: str | Sequence[str] = (),
    *,
    output: str | Path | None = None,
    resume: bool = False,
    offline: bool = False,
    ray: str = "",
    say: Callable[[str], None] | None = None,
    **values: Any,
) -> Run:
    """Measure methods on tasks, as `specbench run` does, and read the run.

    `run("tiny", "eagle2,pld", tasks="gsm8k", limit=2, output="runs/mine").summary`

    Args:
        model: a known model, a folder or a Hub id.
        methods: methods with options, in one text or several; by default those of the command.
        output: the run's folder; by default a new one in `results/runs`.
        resume: continue an unfinished run, with its own values.
        offline: use no network.
        ray: share the prompts among the GPUs of a Ray cluster: "auto", "local" or its address.
        say: receives a line per finished sample and message, such as `print`.
        values: further fields of `specbench.log.spec.SpecValues`: `tasks`, `prompts`, `limit`,
            `temperatures`, `max_new_tokens`, `repeats`, `seed`, `device`, `dtype`, and so on.

    Raises:
        UserError: a name, value, file or cluster that is unknown, wrong or missing.
    """
    wait_briefly()
    from specbench.measure.folder import RUNS, claim_folder, new_run, resumed_run
    from specbench.measure.plan import make_plan, setup_maker
    from specbench.measure.progress import Lines
    from specbench.measure.session import run_plan
    from specbench.measure.spec import make_spec

    with _quiet_libraries():
        values |= {"model": model} if model != "tiny" else {}
        values |= {"methods": methods} if methods else {}
        spec = make_spec(**{"repeats": None} | values)
        choose = resumed_run if resume else new_run
        chosen = choose(spec, [*values], Path(output) if output else None, RUNS)
        progress = Lines(say or (lambda text: None))
        with setup_maker(ray) as maker:
            plan = make_plan(chosen.spec, is_offline=offline, setup_maker=maker)
            path = chosen.path if output or resume else claim_folder(chosen.path)
            return Run(run_plan(plan, path, progress, given=chosen.given))


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Hide the progress bars of transformers and of the Hub's client, and show them again after."""
    from transformers.utils import logging

    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # the Hub's too
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()


def _flat(input_ids: Sequence[int] | Tensor) -> tuple[int, ...]:
    from torch import Tensor

    listed: list[Any] = input_ids.tolist() if isinstance(input_ids, Tensor) else [*input_ids]
    if listed and isinstance(listed[0], list):
        if len(listed) != 1:
            raise UserError(f"input_ids hold {len(listed)} prompts.", "Give one at a time.")
        listed = listed[0]
    return tuple(int(token) for token in listed)
