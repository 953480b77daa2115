"""Choose the settings and numbers of threads that are fastest here, in the warm-up.

The choices are made before the first timed step, or taken from the run that is continued. They
change neither the plan nor its setup, because the header records them separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace as replace_part

from specbench.log.backend import RooflineHeader
from specbench.log.machine import Threads
from specbench.measure.local.engine_load import EngineParts, build_drafters
from specbench.measure.local.memory import MemoryLedger
from specbench.measure.local.threads import step_times
from specbench.measure.local.trial import set_threads
from specbench.measure.spec import AUTO
from specbench.models.checkpoints import identify
from specbench.settings import quick_rule
from specbench.settings.acceptance import find_acceptance
from specbench.settings.run_method import RunMethod
from specbench.types import Request

if TYPE_CHECKING:
    from specbench.engine.drafter import Drafter
    from specbench.engine.target import Target
    from specbench.log.header import RunHeader

TUNING_TOKENS = 48
"""A setting is tried with an answer of at most this many tokens."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices for this machine so far."""

    methods: tuple[RunMethod, ...]
    """The methods of the run, with the settings in effect."""
    are_settings_open: bool
    """True if the warm-up is to choose the settings of methods."""
    threads: Threads | None = None
    """Numbers of CPU threads; None if none were chosen yet."""
    are_threads_kept: bool = False
    """True if `threads` comes from the continued run."""

    @classmethod
    def at_start(cls, setup: EngineParts, before: RunHeader | None) -> Choices:
        """The choices of a setup, or of the continued run (`before`)."""
        if before is None:
            return cls(setup.methods, are_settings_open=setup.settings == AUTO)
        methods = tuple(
            method.as_before(before.methods.get(method.label)) for method in setup.methods
        )
        return cls(
            methods,
            are_settings_open=False,
            threads=before.threads,
            are_threads_kept=before.threads is not None,
        )

    def with_settings(self, changed: Sequence[RunMethod], threads: Threads) -> Choices:
        """A copy with other `threads`. Methods in `changed` replace those with equal labels."""
        by_label = {method.label: method for method in (*self.methods, *changed)}
        return replace(self, methods=tuple(by_label.values()), threads=threads)


@dataclass(frozen=True, slots=True)
class SettingsChoice:
    """The chosen settings, and the measured times that they are based on."""

    methods: Sequence[RunMethod]
    """The methods whose settings were changed."""
    threads: Threads
    """The numbers of threads, with the times of steps by rows."""


def choose_settings(
    setup: EngineParts,
    methods: Sequence[RunMethod],
    target: Target,
    drafters: Mapping[str, Drafter],
    threads: Threads,
    request: Request,
) -> SettingsChoice:
    """Give methods the settings that are fastest here.

    Returns the methods whose settings were changed, and the step times that they are based on.

    Args:
        setup: names the target, for which the acceptance with several settings may be known.
        methods: the run's methods. They keep the settings that they have, and the user's options.
        target: the loaded model, whose steps are timed.
        drafters: the methods' drafters, by label.
        threads: vanilla's number of CPU threads, and who chose it.
        request: the request to complete with each setting that is tried.
    """
    files = identify(setup.path).files
    # A function that returns the known acceptance of a method with several settings.
    acceptance = partial(quick_rule.acceptance_of, find_acceptance(setup.card.name, files))
    rows = quick_rule.rows_to_time(methods, drafters, acceptance)  # numbers of rows of a step
    times = step_times(target, request.prompt_ids, threads, rows)
    prepare = partial(_prepare_trial, target, request, threads.num)
    changed = quick_rule.choose_settings(methods, drafters, times, acceptance, prepare)
    return SettingsChoice(changed, replace_part(threads, row_step_s=times.for_header()))


def _prepare_trial(
    target: Target, request: Request, usual_threads: int, method: RunMethod, trial_threads: int
) -> quick_rule.TimeStep:
    """Build a method's drafter, and return a function that times its steps.

    `method` has the settings to try; `target` is the loaded model. The returned function decodes at
    most TUNING_TOKENS tokens of the request with `trial_threads` CPU threads, sets torch's number
    of threads back to `usual_threads`, and returns the mean seconds of a step, drafting included.
    """
    from specbench.engine.decode import decode

    # A separate ledger, so that a trial's GPU memory does not count as the method's in the run.
    ledger = MemoryLedger(target)
    drafter = build_drafters(target, [method], ledger)[method.label]
    num_tokens = min(TUNING_TOKENS, request.max_new_tokens)
    short_request = replace(request, max_new_tokens=num_tokens)

    def time_step() -> float:
        """Mean seconds of a step."""
        set_threads(trial_threads)
        try:
            completion = decode(target, drafter, short_request)
        finally:
            set_threads(usual_threads)
        return completion.decode_s / len(completion.accept_lengths)  # seconds / number of steps

    return time_step


def with_thread_bandwidths(
    roofline: RooflineHeader, target: Target, threads: Threads
) -> RooflineHeader:
    """The header with the memory's bandwidth, measured with each method's number of threads.

    `roofline` has the bandwidth measured with vanilla's number. `threads.own` has the numbers, by
    method, that differ from vanilla's.
    """
    from specbench.machine.bandwidth import bandwidth

    bytes_per_s = {str(threads.num): roofline.bandwidth_bytes_per_s}  # by number of threads
    for count in sorted({*threads.own.values()}):
        set_threads(count)
        bytes_per_s[str(count)] = bandwidth(target.device, roofline.block_bytes)
    set_threads(threads.num)
    return replace_part(roofline, bandwidth_by_threads=bytes_per_s)
