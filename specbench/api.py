"""specbench from Python: models that complete prompts, and runs, new or stored, as data frames."""

from __future__ import annotations

import logging as python_logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.errors import UserError, cut, unknown_name, visible
from specbench.log.options import Option, options
from specbench.log.spec import SpecValues
from specbench.machine.threads import wait_briefly
from specbench.types import RUNS, Completion, Request

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

    from specbench.analysis.metrics import RunMetrics
    from specbench.log.run import Load
    from specbench.log.run import Run as LogRun
    from specbench.measure.local.engine import EngineBackend
    from specbench.measure.local.engine_setup import EngineSetup


_KEYS = ("method", "temperature", "concurrency", "request_rate")


@dataclass(frozen=True, slots=True, repr=False)
class Generation:
    """The answer that `generate` returns, with its tokens, steps and times."""

    text: str
    prompt_ids: tuple[int, ...]
    completion: Completion

    def __repr__(self) -> str:
        return (
            f"<Generation {cut(self.text, 40)!r}: {self.completion.num_tokens} tokens in "
            f"{self.num_steps} steps, MAT {self.mean_accepted_tokens:.2f}, "
            f"{self.tokens_per_s:.0f} tokens/s>"
        )

    def _repr_html_(self) -> str:
        values = {
            "tokens": self.completion.num_tokens,
            "steps": self.num_steps,
            "MAT": f"{self.mean_accepted_tokens:.2f}",
            "tokens/s": f"{self.tokens_per_s:.0f}",
        }
        head = "".join(f"<th>{name}</th>" for name in values)
        row = "".join(f"<td>{value}</td>" for value in values.values())
        text = f'<p style="white-space: pre-wrap">{escape(visible(self.text))}</p>'
        return f"{text}<table><tr>{head}</tr><tr>{row}</tr></table>"

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
        ids = _flat(input_ids) if input_ids is not None else codec.render(_chat(prompt))
        if max(ids) >= (size := self._backend.target.vocab_size):
            raise UserError(
                f"The prompt has token {max(ids)}, and the model has {size} tokens.",
                "Take the ids from the model's own tokenizer.",
            )
        from specbench.measure.spec import make_spec

        drawn = {"temperatures": temperature, "top_p": top_p, "top_k": top_k, "seed": seed}
        spec = make_spec(max_new_tokens=max_new_tokens, **drawn)
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
            `template`, `weights`, `kernels`, and `threads`, the number of CPU threads
            of one operation; None takes the fastest for a step.

    Raises:
        UserError: an unknown name or option, a missing file, or too little memory.
    """
    wait_briefly()
    from specbench.measure.local.engine import EngineBackend
    from specbench.measure.local.engine_setup import make_engine_setup
    from specbench.measure.spec import make_spec

    known = ["model", "method", "offline", *(one.name for one in _options("model"))]
    for name, value in {"model": model, "method": method}.items():
        if not isinstance(value, str):
            raise UserError(f"load takes {name} as a text, not {value!r}.", "Name one.")
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
        from specbench.report.verdict import verdict

        model, status = self.header.model.label, self.header.status
        first = next(iter(self._metrics.values()))
        found = [verdict(first, temperature) for temperature in first.temperatures]
        about = f"{self.header.id}: {model}, {len(self.records)} records, {status}"
        return f"<Run {'. '.join([about, *filter(None, found)])}>"

    def __str__(self) -> str:
        return f"{self!r}\n{self.table.round(2).to_string()}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self)[1:-1])}</p>{self.table.round(2).to_html()}"

    @cached_property
    def _metrics(self) -> Mapping[Load, RunMetrics]:
        from specbench.analysis.metrics import measure

        return {load: measure(self._run.at(load)) for load in self._run.loads}

    @cached_property
    def table(self) -> DataFrame:
        """The part of `summary` that fits a screen: a row a method over all tasks, fastest first.

        `tokens_per_s` and `num_samples` are of all tasks together, the rest are their means.
        """
        keys = [name for name in _KEYS if name in self.summary]
        rows = self.summary.set_index(keys)
        means, pooled = (rows[rows["task"] == task] for task in ("mean", "pooled"))
        speedups = ["speedup", "speedup_low", "speedup_high", "mat"]
        table = means[speedups].join(pooled[["tokens_per_s", "num_samples"]])
        return table.sort_values("speedup", ascending=False)

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

        frames = {load: summary_frame(metrics) for load, metrics in self._metrics.items()}
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
        methods: methods with options, in one text or several; by default as in the command.
        output: the run's folder; by default a new one in `results/runs`.
        resume: continue an unfinished run, with its own values.
        offline: use no network.
        ray: share the prompts among the GPUs of a Ray cluster: "auto", "local" or its address.
        say: receives a line per finished sample and message, such as `print`; by default a
            notebook shows the last one, and nothing is said elsewhere.
        values: further fields of `specbench.log.spec.SpecValues`: `tasks`, `prompts`, `limit`,
            `temperatures`, `max_new_tokens`, `repeats`, `seed`, `device`, `dtype`, and so on.

    Raises:
        UserError: a name, value, file or cluster that is unknown, wrong or missing.
    """
    wait_briefly()
    from specbench.measure.elsewhere import setup_maker
    from specbench.measure.plan import make_plan
    from specbench.measure.progress import Lines
    from specbench.measure.run_folder import claim_folder, new_run, resumed_run
    from specbench.measure.session import run_plan
    from specbench.measure.spec import make_spec

    with _quiet_libraries():
        values |= {"model": model} if model != "tiny" else {}
        values |= {"methods": methods} if methods else {}
        spec = make_spec(**{"repeats": None} | values)
        choose = resumed_run if resume else new_run
        chosen = choose(spec, [*values], Path(output) if output else None, RUNS)
        progress = Lines(say or _notebook_line())
        with setup_maker(ray) as maker:
            plan = make_plan(chosen.spec, is_offline=offline, setup_maker=maker)
            path = chosen.path if output or resume else claim_folder(chosen.path)
            return Run(run_plan(plan, path, progress, given=chosen.given))


def _options(group: str = "") -> list[Option]:
    return [one for one in options(SpecValues) if group in ("", one.group)]


def _show_options(function: Callable[..., Any], group: str = "") -> None:
    """Put the options that a function takes as further values into its signature, for help."""
    own = signature(function)
    shown = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    known = {one.name for one in shown}
    shown += [
        Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.kind)
        for one in _options(group)
        if one.name not in known
    ]
    function.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]


_show_options(load, "model")
_show_options(run)


def _notebook_line() -> Callable[[str], None]:
    """Shows the last of several texts in a notebook, and nothing elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):
        return lambda text: None
    display = import_module("IPython.display").display  # there is no IPython elsewhere
    handle = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: handle.update({"text/plain": text}, raw=True)


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Hide progress bars of transformers and the Hub's client while the block runs.

    Messages of torchao about kernels that it lacks are hidden, too.
    """
    with ExitStack() as undone:
        for name in ("torchao", "torch.utils._pytree"):
            logger = python_logging.getLogger(name)
            undone.callback(logger.setLevel, logger.level)
            logger.setLevel(python_logging.ERROR)
        from transformers.utils import logging

        if logging.is_progress_bar_enabled():
            undone.callback(logging.enable_progress_bar)
        logging.disable_progress_bar()  # the Hub's too
        yield


def _chat(prompt: Any) -> Sequence[dict[str, str]]:
    """The prompt as messages."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    is_chat = isinstance(prompt, list | tuple) and all(
        isinstance(one, dict) and all(isinstance(one.get(k), str) for k in ("role", "content"))
        for one in prompt
    )
    if not is_chat:
        raise UserError(
            f"The prompt {prompt!r:.60} is neither a text nor a list of messages.",
            "Give a text, messages as {'role': 'user', 'content': 'Hello'}, or token ids as "
            "input_ids=[1, 2, 3]. Several prompts are several calls.",
        )
    return list(prompt)


def _flat(input_ids: Sequence[int] | Tensor) -> tuple[int, ...]:
    listed: Any = input_ids.tolist() if hasattr(input_ids, "tolist") else input_ids
    is_row = isinstance(listed, Sequence) and listed
    if is_row and isinstance(listed[0], list):
        if len(listed) != 1:
            raise UserError(f"input_ids hold {len(listed)} prompts.", "Give one at a time.")
        listed = listed[0]
    if not (is_row and all(isinstance(token, int) and token >= 0 for token in listed)):
        raise UserError(f"input_ids {listed!r:.60} are not token ids.", "Give them as [1, 2, 3].")
    return tuple(listed)
