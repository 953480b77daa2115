"""Run the engine in this process: a loaded target, and a drafter per method. Batch size is 1."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from msgspec.structs import replace as replace_part

from specbench.errors import ContractFault, MethodFault, SpecbenchError, containing, describe_error
from specbench.log.backend import Preparation
from specbench.log.header import RunHeader
from specbench.log.machine import Threads
from specbench.measure.base import BackendInfo, Log, Plan, Progress, outer_clock
from specbench.measure.local.choices import Choices, choose_settings, with_thread_bandwidths
from specbench.measure.local.energy import measure_energies, metered
from specbench.measure.local.engine_load import (
    LoadedEngine,
    broken_drafter,
    build_drafters,
    describe_execution,
    describe_kernels,
    load_engine,
)
from specbench.measure.local.hook_times import counted_completion, counted_hook
from specbench.measure.local.threads import choose_for_methods, choose_threads, reading
from specbench.measure.local.traffic import draft_bytes, measure_again, measure_traffic
from specbench.measure.local.trial import set_threads
from specbench.measure.local.warm_up import warm_up
from specbench.measure.runner import Runner
from specbench.types import BASELINE, Completion, Record, Request

if TYPE_CHECKING:
    from specbench.engine.clock import Stopwatch
    from specbench.engine.drafter import Drafter
    from specbench.engine.target import Target
    from specbench.machine.gpu_sampler import GpuSampler
    from specbench.measure.local.engine_load import EngineParts
    from specbench.measure.local.fingerprint import Fingerprint

PRIMING_TOKENS = 3
"""One token from the prefill and two from steps. A draft model prefills in the first step."""
LATE_WARNING = (
    "{} CUDA graphs were captured while samples were timed, which slowed those samples down: the "
    "warm-up had not reached their sizes."
)


class _Pace(NamedTuple):
    """The speed of a method's completion."""

    token_s: float
    """Seconds of decoding per token."""
    prefill_s: float


class EngineBackend:
    """Runs the model and the methods of a setup, and loads them unless they are already `loaded`.

    Torch's numbers of threads are given by the user, taken from the continued run, or measured:
    vanilla's when the backend opens, the others in the warm-up. Closing restores torch's number.

    With `is_metered`, the GPU is sampled while the backend is open, the memory's bandwidth is
    measured, and completions on a GPU have peak memory and energy. Before each of them, the method
    decodes a few tokens of the request, untimed, to load the kernels for its shapes.
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
        """Keep the setup, which `__enter__` loads.

        Args:
            setup: the model and the methods, found and checked.
            is_metered: sample the GPU; measure the memory's bandwidth, peak memory and energy.
            loaded: target and drafters of an equal setup, already loaded; None to load them.
            before: the header of the continued run; None for a new run.
        """
        self._setup = setup
        self._is_metered = is_metered
        self._loaded = loaded
        self._choices = Choices.at_start(setup, before)  # methods' settings, and CPU threads
        # Measurements for the header. A continued run keeps the energies that it has.
        self._info = BackendInfo(energy=before.energy if before else ())
        self.drafters: dict[str, Drafter] = {}  # by the method's label, like the other mappings
        self._num_late_before = 0  # number of late CUDA graphs when the warm-up ended
        self._stopwatch: Stopwatch | None = None  # times the phases of steps if --phases is given
        self._sampler: GpuSampler | None = None  # None if not metered, or without a GPU's driver
        self._rows: dict[str, int] = {}  # the most rows (tree nodes) of a step
        self._paces: dict[str, _Pace] = {}  # of the fastest completion so far
        self._usual_request: Request | None = None  # None before the warm-up
        self._stack = ExitStack()  # at the end, stops the sampler and restores torch's threads

    def __enter__(self) -> Self:
        """Load the target and the drafters, choose vanilla's threads, and start the meters.

        `_choices` has the methods with their settings, and the threads of a continued run.
        `spec.threads` is the user's number of threads, or None. An error ends what was started.
        """
        import torch

        from specbench.engine.clock import phase_stopwatch

        setup = self._setup
        with ExitStack() as stack:
            if self._is_metered and setup.device.num_gpus:
                from specbench.machine.gpu_sampler import gpu_sampler

                self._sampler = stack.enter_context(gpu_sampler(setup.device.name))
            loaded = self._loaded or load_engine(replace(setup, methods=self._choices.methods))
            self.target = loaded.target
            self.drafters = {**loaded.drafters}
            self._ledger = loaded.ledger  # GPU memory that each method holds
            self._info.hooks = {**loaded.ledger.hooks}  # untimed work so far: building each method
            if setup.spec.phases:  # the phases of steps are to be timed
                self._stopwatch = phase_stopwatch(self.target.device)
            stack.callback(torch.set_num_threads, torch.get_num_threads())  # restored at the end
            threads = choose_threads(self.target, setup.spec.threads, self._choices.threads)
            self._choices = replace(self._choices, threads=threads)
            self._info.preparation = Preparation(load_s=round(loaded.seconds, 3))
            if self._is_metered:
                self._info.roofline = measure_traffic(self.target)  # bandwidth, bytes of a step
            if self._sampler:
                self._sampler.start()
            self._stack = stack.pop_all()  # nothing failed: it is closed in `__exit__`
            if self._is_metered:  # `weights` is the fingerprint of the target's weights
                self._stack.callback(self._measure_at_end, loaded.weights, outer_clock())
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _measure_at_end(self, fingerprint: Fingerprint | None, began_s: float) -> None:
        """Compare the weights with their fingerprint, if there is one. Measure the bandwidth again.

        The backend opened at `began_s` on the outer clock. The longer the run took, the more
        weights may be read.
        """
        with suppress(RuntimeError):  # if the device failed, the run already has an error
            if fingerprint:
                self._info.weights_print = fingerprint.compared(outer_clock() - began_s)
            if self._info.roofline:  # the memory's bandwidth was measured before the run
                if self._choices.threads:  # vanilla's number, as before the run
                    set_threads(self._choices.threads.num)
                self._info.roofline = measure_again(self._info.roofline, self.target.device)
                self._compare_vanilla()

    def _compare_vanilla(self) -> None:
        """Compare vanilla's step with a step without any method, before or after the run."""
        from specbench.measure.local.baseline_turns import with_vanilla_ratio

        vanilla, request = self.drafters.get(BASELINE), self._usual_request
        if (roofline := self._info.roofline) and vanilla and request:
            self._info.roofline = with_vanilla_ratio(roofline, self.target, vanilla, request)

    def describe(self, records: Sequence[Record] = ()) -> BackendInfo:
        """The part of the run's header that this backend has measured so far.

        `records` are the run's records so far. The sizes of their drafts give the bytes that drafts
        read, for `roofline` (the memory's bandwidth and a step's bytes; None if not measured).
        """
        info = self._info  # its `preparation` is None until the model is loaded
        gpu = self._sampler.describe() if self._sampler else None  # the GPU's use, and warnings
        warnings = [*(gpu.warnings if gpu else ()), *info.warnings]  # sentences
        num_late_graphs = num_late(self.target) - self._num_late_before if info.preparation else 0
        if info.preparation and num_late_graphs:  # captured after the warm-up, during samples
            warnings.insert(0, LATE_WARNING.format(num_late_graphs))
            info.preparation = replace_part(info.preparation, num_late=num_late_graphs)
        for label, drafter in self.drafters.items():
            warnings += [f"{label}: {note}" for note in drafter.weights_notes]  # about a checkpoint
        if gpu and self._setup.device.num_gpus > 1:  # only the first GPU's energy is known
            gpu = replace_part(gpu, energy_source=None)
        bytes_by_label = draft_bytes(self.drafters, records)  # bytes that drafts read per step
        # `settings` are options that were chosen in place of the paper's, else None.
        methods_with_settings = [method for method in self._choices.methods if method.settings]
        return replace(
            info,
            threads=self._choices.threads,
            methods={method.label: method.describe() for method in methods_with_settings},
            roofline=info.roofline and replace_part(info.roofline, draft_bytes=bytes_by_label),
            kernels=describe_kernels(self.target) if info.preparation else None,
            gpu=gpu,
            warnings=tuple(warnings),
        )

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Choose settings and threads, let every method decode a little, and capture graphs.

        `requests` give the run's sizes and temperatures; only the first, the usual one, is decoded.
        A method's error is not raised here, as its samples will fail too. Notes facts for the
        header.
        """
        from specbench.engine.layers.torch_attention import without_cudnn_attention

        began_s = perf_counter()
        gc.freeze()  # torch before 2.9 collects garbage before each capture
        with without_cudnn_attention():
            if self._choices.are_settings_open and self._choices.threads:  # to be chosen here
                self._choose_settings(requests[0], self._choices.threads)
            # Both are by label: the reason why a method's steps cannot be graphs, or None; and a
            # warning for each method whose graphs could not all be captured.
            reasons, warnings = warm_up(self.target, self.drafters, self._check, requests=requests)
            self._choose_threads(requests[0])
        # A method without a pace has failed, and its samples will say why.
        self._info.warnings = tuple(warnings[label] for label in warnings if label in self._paces)
        self._usual_request = requests[0]
        self._compare_vanilla()
        is_joined = self.target.execution.is_joined  # True if one graph computes a whole step
        for label, method_reason in reasons.items():
            # The mode may have a reason that holds for all methods.
            eager_reason = method_reason or self._setup.mode.reason
            mode = "eager" if eager_reason else self._setup.mode.name
            header = describe_execution(self.drafters[label], mode, eager_reason, is_joined)
            self._info.execution[label] = header
        warm_up_s = round(perf_counter() - began_s, 3)
        if self._info.preparation:
            self._info.preparation = replace_part(self._info.preparation, warm_up_s=warm_up_s)
        self._num_late_before = num_late(self.target)  # `describe` counts from here
        gc.freeze()  # else a garbage collection takes a fifth of a second during a sample
        self._stack.callback(gc.unfreeze)

    def _choose_settings(self, request: Request, threads: Threads) -> None:
        """Give methods the settings that are fastest here, and build their drafters anew."""
        methods = self._choices.methods
        chosen = choose_settings(self._setup, methods, self.target, self.drafters, threads, request)
        self._choices = self._choices.with_settings(chosen.methods, chosen.threads)
        self.drafters |= build_drafters(self.target, chosen.methods, self._ledger)
        self._info.hooks |= self._ledger.hooks

    def _choose_threads(self, request: Request) -> None:
        """Choose the fastest numbers of threads for prefills and for each method's steps.

        The times are measured on `request`. Numbers that the user or the environment gave, and
        those of a continued run, are kept. The bandwidth is measured with each method's number.
        """
        threads = self._choices.threads  # vanilla's number of CPU threads, and who chose it
        if threads is None or threads.chosen_by != "measured":  # given, or torch's on a GPU
            return
        if not self._choices.are_threads_kept:
            threads = choose_for_methods(
                threads,
                prefill=reading(self.target, request.prompt_ids),
                decode=lambda method, watch: self._run(method, request, stopwatch=watch),
                rows=self._rows,  # rows of each method's largest step
            )
            self._choices = replace(self._choices, threads=threads)
        if self._info.roofline and threads.own:  # some method has another number than vanilla
            self._info.roofline = with_thread_bandwidths(self._info.roofline, self.target, threads)

    def runner(self, plan: Plan, log: Log, progress: Progress) -> Runner:
        """The runner of a plan. Prints the expected time, and with --energy measures energies."""
        max_tokens = plan.max_new_tokens  # per answer
        # Seconds of the longest answer with each method; empty if all of them failed.
        answer_s = [pace.prefill_s + pace.token_s * max_tokens for pace in self._paces.values()]
        if answer_s and not self._choices.are_threads_kept:  # not in a continued run
            run_s = plan.num_records * sum(answer_s) / len(answer_s)
            progress.expected(run_s, f"{max_tokens} tokens per answer; measured in the warm-up")
        if plan.spec.energy and not self._info.energy:
            progress.message("Measuring the energy of each method alone …")
            self._info.energy = measure_energies(plan, self._decode, self._setup.device.name)
            log.changed()  # writes the header again, with the energies
        return Runner(plan, self, log, progress)

    def complete(self, method: str, request: Request) -> Completion:
        """Complete a request with the method of this label. On a GPU, a metered one has peak
        memory.

        If steps could not be replayed as graphs, the method counts as eager from now on.
        """
        import torch

        decode = partial(self._decode, method, request)
        failures = self.target.execution.failures  # reasons why steps were not replayed
        failures.clear()
        try:
            if self._is_metered and self.target.device.type == "cuda":
                self._prime(method, request)  # decodes a few tokens, untimed, to load kernels
                # The ledger adds the peak memory, `metered` the energy if there is a single GPU.
                energy_meter = self._sampler if self._setup.device.num_gpus == 1 else None
                return self._ledger.measure(method, partial(metered, decode, energy_meter))
            return decode()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise
        finally:
            execution = self._info.execution.get(method)  # for the header; None in the warm-up
            if failures and execution and not execution.reason:  # else eager already
                reason = f"{min(failures)}, after the warm-up"  # the first in alphabetical order
                eager = replace_part(execution, mode="eager", is_joined=False, reason=reason)
                self._info.execution[method] = eager

    def _check(self, method: str, request: Request) -> Completion:
        """Complete a request in the warm-up, and check each step against the contract of methods.

        Keeps the rows of the method's largest step, and its untimed work (`hooks`). A method that
        breaks the contract (a ContractFault) fails in every sample.
        """
        from specbench.engine.tree import padded_size

        try:
            decode = partial(self._decode, method, request, is_checked=True)
            completion = counted_completion(self._info.hooks, method, decode)
            num_rows = padded_size(max(completion.num_nodes, default=1))  # of the largest step
            self._rows[method] = max(num_rows, self._rows.get(method, 0))
            return completion
        except ContractFault as fault:
            self.drafters[method] = broken_drafter(fault)
            raise

    def _prime(self, method: str, request: Request) -> None:
        """Decode a few tokens of a request, so that its timed completion has no kernels to load."""
        num_tokens = min(PRIMING_TOKENS, request.max_new_tokens)
        decode = partial(self._decode, method, replace(request, max_new_tokens=num_tokens))
        counted_completion(self._info.hooks, method, decode)

    def _decode(self, method: str, request: Request, *, is_checked: bool = False) -> Completion:
        """Complete a request. Prefill and steps have the numbers of threads chosen for them.

        `is_checked` checks each step against the contract of methods. The completion's `outer_s`,
        the seconds of the whole call, leaves out the seconds in which threads are changed.
        """
        decode = partial(
            self._run,
            method,
            request,
            stopwatch=self._stopwatch,
            is_traced=self._setup.spec.trace,  # keeps the draft's confidence in every node
            is_checked=is_checked or self._setup.spec.check_drafts,
        )
        threads = self._choices.threads  # numbers of CPU threads
        if not (threads and (threads.prefill or threads.methods)):  # a single number for all
            return decode()
        set_threads(threads.of_prefill)
        change_s = 0.0  # seconds spent on changing the number of threads

        def set_decode_threads() -> None:
            nonlocal change_s
            began_s = outer_clock()
            set_threads(threads.of(method))
            change_s = outer_clock() - began_s

        completion = decode(on_prefilled=set_decode_threads)
        return replace(completion, outer_s=(completion.outer_s or 0.0) - change_s)

    def _run(self, method: str, request: Request, **options: Any) -> Completion:
        """Decode with a method's drafter, and keep the method's fastest pace (seconds per token).

        `options` are keyword arguments of the engine's `decode`. The completion's `outer_s` has
        the seconds of the whole call.
        """
        from specbench.engine.decode import decode

        began_s = outer_clock()
        try:
            completion = decode(self.target, self.drafters[method], request, **options)
            completion = replace(completion, outer_s=outer_clock() - began_s)
            pace = _Pace(completion.decode_s / completion.num_tokens, completion.prefill_s)
            self._paces[method] = min(self._paces.get(method, pace), pace)  # compares token_s first
            return completion
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

    def _call(self, method: str, name: Literal["remember", "forget"]) -> None:
        """Call a drafter's function `name` outside of completions, and count its seconds."""
        with counted_hook(self._info.hooks, method, name), containing(f"Method {method!r}"):
            getattr(self.drafters[method], name)()

    @property
    def _remembering(self) -> set[str]:
        return {method.label for method in self._choices.methods if method.scope == "run"}


def num_late(target: Target) -> int:
    """The number of graphs captured after the first warm-up, or 0 for eager execution."""
    return int(getattr(target.execution, "num_late", 0))
