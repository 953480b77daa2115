"""The engine in this process: one loaded target, and a drafter for each method.

Completions are the engine's own loop at batch 1.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from msgspec import convert
from msgspec.structs import replace as replace_part

from specbench.errors import ContractFault, MethodFault, SpecbenchError, containing, describe_error
from specbench.log.backend import ExecutionHeader, HookTimes, Kernels, Preparation
from specbench.log.header import RunHeader
from specbench.log.machine import Threads
from specbench.measure.base import BackendInfo, Log, Plan, Progress, outer_clock
from specbench.measure.local.engine_load import (
    LoadedEngine,
    broken_drafter,
    build_drafters,
    load_engine,
    warm_up,
)
from specbench.measure.local.memory import MemoryLedger, draft_bytes, measure_traffic
from specbench.measure.local.threads import choose_threads, set_threads, step_times
from specbench.measure.methods import BASELINE
from specbench.measure.progress import LONG_S, time_text
from specbench.measure.runner import Runner
from specbench.measure.spec import AUTO
from specbench.models.checkpoints import identify
from specbench.settings.acceptance import find_acceptance
from specbench.settings.quick_rule import Steps, acceptance_of, rows_to_time, tuned
from specbench.settings.run_method import RunMethod
from specbench.types import Completion, Record, Request

if TYPE_CHECKING:
    from specbench.engine.clock import Stopwatch
    from specbench.engine.drafter import Drafter
    from specbench.engine.target import Target
    from specbench.machine.gpu_sampler import GpuSampler
    from specbench.measure.local.engine_load import EngineParts
    from specbench.measure.local.memory import Fingerprint

PRIMING_TOKENS = 3
"""The prefill's token and those of a step, for which a draft model has to prefill too."""
TUNING_TOKENS = 48
"""Tokens of the answers that settings are tried on."""
LATE_WARNING = (
    "{} CUDA graphs were captured while samples were timed, which slowed those samples down: the "
    "warm-up had not reached their sizes."
)


class EngineBackend:
    """The engine with a setup's model and methods, or with what was `loaded` for an equal setup.

    Torch's numbers of threads come from the setup or from the run that goes on (`before`), or
    are measured: vanilla's when the backend opens, the others in the warm-up. When it closes,
    the number is as it was. `drafters` has the drafter of each method, as records spell it.

    With `is_metered`, the GPU is sampled while the backend is open, the memory's bandwidth is
    measured, and completions carry peak memory and energy. On a GPU each of them is primed:
    its method completes a few tokens of the same request before, untimed, since kernels are
    loaded at their first launch and chosen by shape.
    """

    target: Target

    def __init__(
        self,
        setup: EngineParts,
        *,
        is_metered: bool = False,
        loaded: LoadedEngine | None = None,
        before: RunHeader | None = None,
    ) -> None:
        if before:
            kept = [one.as_before(before.methods.get(one.label)) for one in setup.methods]
            setup = replace(setup, methods=tuple(kept), settings="paper")
        self._setup, self._is_metered, self._loaded = setup, is_metered, loaded
        self._before = before.threads if before else None
        self._info = BackendInfo()
        self.drafters: dict[str, Drafter] = {}
        self._late_before = 0
        self._stopwatch: Stopwatch | None = None
        self._sampler: GpuSampler | None = None
        self._rows: dict[str, int] = {}
        self._paces: dict[str, tuple[float, float]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        import torch

        from specbench.engine.clock import phase_stopwatch

        with ExitStack() as stack:
            if self._is_metered and self._setup.device.num_gpus:
                from specbench.machine.gpu_sampler import gpu_sampler

                self._sampler = stack.enter_context(gpu_sampler(self._setup.device.name))
            loaded = self._loaded or load_engine(self._setup)
            self.target, self.drafters = loaded.target, {**loaded.drafters}
            self._ledger = loaded.ledger
            self._info.hooks = {**loaded.ledger.hooks}
            if self._setup.spec.phases:
                self._stopwatch = phase_stopwatch(self.target.device)
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            threads = self._setup.spec.threads
            self._info.threads = choose_threads(self.target, threads, self._before)
            self._info.preparation = Preparation(load_s=round(loaded.seconds, 3))
            if self._is_metered:
                self._info.roofline = measure_traffic(self.target)
            if self._sampler:
                self._sampler.start()
            self._stack = stack.pop_all()
            if loaded.weights and self._is_metered:
                self._stack.callback(self._print_weights, loaded.weights, outer_clock())
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _print_weights(self, weights: Fingerprint, began: float) -> None:
        with suppress(RuntimeError):  # the device failed: the run's own error is shown
            self._info.weights_print = weights.compared(outer_clock() - began)

    def describe(self, records: Sequence[Record] = ()) -> BackendInfo:
        gpu = self._sampler.describe() if self._sampler else None
        info, warnings = self._info, gpu.warnings if gpu else []
        if info.preparation and (late := num_late(self.target) - self._late_before):
            warnings.insert(0, LATE_WARNING.format(late))
            info.preparation = replace_part(info.preparation, num_late=late)
        for label, drafter in self.drafters.items():
            warnings += [f"{label}: {note}" for note in drafter.weights_notes]
        if gpu and self._setup.device.num_gpus > 1:  # a part of the energy of a step
            gpu = replace_part(gpu, energy_source=None)
        read = draft_bytes(self.drafters, records)
        return replace(
            info,
            methods={one.label: one.describe() for one in self._setup.methods if one.settings},
            roofline=info.roofline and replace_part(info.roofline, draft_bytes=read),
            kernels=describe_kernels(self.target) if info.preparation else None,
            gpu=gpu,
            warnings=tuple(warnings),
        )

    def warm_up(self, requests: Sequence[Request]) -> None:
        from specbench.engine.layers.torch_attention import without_cudnn_attention

        began = perf_counter()
        gc.freeze()  # torch before 2.9 collects garbage before each capture
        with without_cudnn_attention():
            if self._setup.settings == AUTO and self._info.threads:
                self._tune(requests[0], self._info.threads)
            reasons = warm_up(self.target, self.drafters, self._check, requests=requests)
            self._choose_threads(requests[0])
        for label, reason in reasons.items():
            reason = reason or self._setup.mode.reason
            drafter, layer_inputs = self.drafters[label], tuple[int, ...]()
            with suppress(Exception), containing("The needs of a drafter"):  # its samples will fail
                layer_inputs = tuple(drafter.needs.layer_inputs)
            self._info.execution[label] = ExecutionHeader(
                "eager" if reason else self._setup.mode.name,
                reason,
                layer_inputs,
                drafter.weights_layout,
                drafter.has_guessed_layers,
            )
        seconds = round(perf_counter() - began, 3)
        if self._info.preparation:
            self._info.preparation = replace_part(self._info.preparation, warm_up_s=seconds)
        self._late_before = num_late(self.target)
        gc.freeze()  # else a collection takes a fifth of a second within some sample
        self._stack.callback(gc.unfreeze)

    def _tune(self, request: Request, threads: Threads) -> None:
        """Give methods the settings that are fastest here, and build their drafters anew."""
        files = identify(self._setup.path).files
        known = partial(acceptance_of, find_acceptance(self._setup.card.name, files))
        rows = rows_to_time(self._setup.methods, self.drafters, known)
        times = step_times(self.target, request.prompt_ids, threads, rows)
        self._info.threads = replace_part(threads, row_step_s=times.shown())
        prepare = partial(self._trial, request, threads.num)
        found = tuned(self._setup.methods, self.drafters, times, known, prepare)
        by_label = {one.label: one for one in (*self._setup.methods, *found)}
        self._setup = replace(self._setup, methods=tuple(by_label.values()))
        self.drafters |= build_drafters(self.target, found, self._ledger)
        self._info.hooks |= self._ledger.hooks

    def _trial(self, request: Request, usual: int, method: RunMethod, threads: int) -> Steps:
        """A function that answers a request, and returns the mean seconds of a step."""
        from specbench.engine.decode import decode

        drafter = build_drafters(self.target, [method], MemoryLedger(self.target))[method.label]
        short = replace(request, max_new_tokens=min(TUNING_TOKENS, request.max_new_tokens))

        def step_s() -> float:
            set_threads(threads)
            try:
                done = decode(self.target, drafter, short)
            finally:
                set_threads(usual)
            return done.decode_s / len(done.accept_lengths)

        return step_s

    def _choose_threads(self, request: Request) -> None:
        """Choose the threads of prefills and of each method, and measure the bandwidth with them.

        Those of a run that goes on are kept.
        """
        info, found = self._info, self._info.threads
        if found is None or found.chosen_by != "measured":
            return
        from specbench.machine.bandwidth import bandwidth
        from specbench.measure.local.threads import choose_for_methods, reading

        info.threads = self._before or choose_for_methods(
            found,
            reading(self.target, request.prompt_ids),
            lambda method, watch: self._run(method, request, stopwatch=watch),
            {label: size for label, size in self._rows.items() if label != BASELINE},
        )
        if info.roofline and info.threads.own:
            by_threads = {str(found.num): info.roofline.bandwidth_bytes_per_s}
            for count in sorted({*info.threads.own.values()}):
                set_threads(count)
                by_threads[str(count)] = bandwidth(self.target.device, info.roofline.block_bytes)
            set_threads(found.num)
            info.roofline = replace_part(info.roofline, bandwidth_by_threads=by_threads)

    def runner(self, plan: Plan, log: Log, progress: Progress) -> Runner:
        paces = [rest + each * plan.max_new_tokens for each, rest in self._paces.values()]
        if paces and not self._before:
            seconds = plan.num_records * sum(paces) / len(paces)
            if seconds > LONG_S:
                how = f"with {plan.max_new_tokens} tokens an answer"
                progress.message(f"About {time_text(seconds)} {how}, by the warm-up.")
        return Runner(plan, self, log, progress)

    def complete(self, method: str, request: Request) -> Completion:
        import torch

        run = partial(self._decode, method, request)
        failures = self.target.execution.failures
        failures.clear()
        try:
            if self._is_metered and self.target.device.type == "cuda":
                self._prime(method, request)
                meter = self._sampler if self._setup.device.num_gpus == 1 else None
                return self._ledger.measure(method, partial(metered, run, meter))
            return run()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise
        finally:
            mode = self._info.execution.get(method)
            if failures and mode and not mode.reason:
                reason = f"{min(failures)}, after the warm-up"
                self._info.execution[method] = replace_part(mode, mode="eager", reason=reason)

    def _check(self, method: str, request: Request) -> Completion:
        """A checked completion. A method that breaks its contract here fails in every sample."""
        from specbench.engine.tree import padded_size

        try:
            done = self._decode(method, request, is_checked=True)
            size = padded_size(max(done.num_nodes, default=1))
            self._rows[method] = max(size, self._rows.get(method, 0))
            return done
        except ContractFault as fault:
            self.drafters[method] = broken_drafter(fault)
            raise

    def _prime(self, method: str, request: Request) -> None:
        """Begin the request once, so that its timed completion finds every kernel loaded."""
        budget = min(PRIMING_TOKENS, request.max_new_tokens)
        self._decode(method, replace(request, max_new_tokens=budget))

    def _decode(self, method: str, request: Request, *, is_checked: bool = False) -> Completion:
        decode = partial(
            self._run,
            method,
            request,
            stopwatch=self._stopwatch,
            is_traced=self._setup.spec.trace,
            is_checked=is_checked or self._setup.spec.check_drafts,
        )
        threads = self._info.threads
        if not (threads and (threads.prefill or threads.methods)):
            return decode()

        set_threads(threads.of_prefill)
        changed_s = 0.0

        def change() -> None:
            nonlocal changed_s
            began = outer_clock()
            set_threads(threads.of(method))
            changed_s = outer_clock() - began

        done = decode(on_prefilled=change)
        return replace(done, outer_s=(done.outer_s or 0.0) - changed_s)

    def _run(self, method: str, request: Request, **options: Any) -> Completion:
        from specbench.engine.decode import decode

        began = outer_clock()
        try:
            done = decode(self.target, self.drafters[method], request, **options)
            done = replace(done, outer_s=outer_clock() - began)
            pace = done.decode_s / done.num_tokens, done.prefill_s
            self._paces[method] = min(self._paces.get(method, pace), pace)
            return done
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # a plug-in that exits must not end the run
            raise MethodFault(describe_error(error)) from error

    def remember(self, method: str) -> None:
        if method in self._remembering:
            self._call(method, "remember")

    def forget(self) -> None:
        for method in self._remembering:
            try:
                self._call(method, "forget")
            except SpecbenchError as fault:
                self.drafters[method] = broken_drafter(fault)

    def _call(self, method: str, name: str) -> None:
        """Call a method's own code outside of completions, and count its time."""
        began = outer_clock()
        try:
            with containing(f"Method {method!r}"):
                getattr(self.drafters[method], name)()
        finally:
            times = self._info.hooks.get(method, HookTimes())
            seconds = getattr(times, f"{name}_s") + outer_clock() - began
            self._info.hooks[method] = replace_part(times, **{f"{name}_s": seconds})

    @property
    def _remembering(self) -> set[str]:
        return {one.label for one in self._setup.methods if one.scope == "run"}


def describe_kernels(target: Target) -> Kernels:
    """The code that computes the layers, with launches that failed until now."""
    if target.unfused_reason:
        return Kernels("transformers", target.unfused_reason)
    return convert(target.execution.ops.describe(), Kernels)


def num_late(target: Target) -> int:
    """Graphs captured after the warm-up; 0 for eager execution."""
    return int(getattr(target.execution, "num_late", 0))


def metered(complete: Callable[[], Completion], sampler: GpuSampler | None) -> Completion:
    """A completion with its energy, read outside of the timed region."""
    before = sampler.energy_j() if sampler else None
    done = complete()
    after = sampler.energy_j() if sampler else None
    if before is None or after is None or after < before:  # the counter of a driver that restarted
        return done
    return replace(done, energy_j=after - before)
