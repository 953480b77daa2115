"""Check what a machine can run, and whether its baseline can be trusted."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from msgspec import structs

from specbench.data.cache import CACHE_VARIABLE
from specbench.log.machine import Threads
from specbench.machine import environment
from specbench.machine.memory import free_bytes
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_load import describe_kernels
from specbench.measure.local.engine_setup import EngineSetup, make_engine_setup
from specbench.measure.local.traffic import measure_traffic
from specbench.measure.methods import BASELINE
from specbench.measure.requests import user
from specbench.measure.spec import RunSpec
from specbench.settings.tuned_settings import stored_tunes, tunes_folders
from specbench.types import Request

if TYPE_CHECKING:
    from specbench.engine.target import Target

T = TypeVar("T")
PROMPTS = (
    "Write a short letter to a friend about the sea.",
    "What is the capital of France, and which river runs through it?",
    "Count from one to twenty.",
)
NUM_TOKENS = 64
"""The number of new tokens in an answer."""
NUM_ROUNDS = 5
"""Number of timed answers to each prompt, in our loop and by `generate`."""
NUM_KIND_ROUNDS = 2
"""Number of timed answers to each prompt with each kind of kernels."""
MARGIN = 1.05
"""If our loop takes more than this many times as long as `generate`, it counts as slower. The times
scatter by a few percent.
"""


class Diagnosis(NamedTuple):
    """The result of one check."""

    name: str
    text: str
    is_ok: bool | None = None
    """None if there is nothing to judge."""


def examine(spec: RunSpec, *, is_offline: bool) -> Iterator[Diagnosis]:
    """The lines of `specbench doctor` about the model, device, threads and weights of a spec.

    Yields each line as soon as its check is done: the software first, the kernels last. With
    `is_offline`, nothing is downloaded.
    """
    installed = environment.capture()  # the versions of Python, torch and specbench
    versions = f"Python {installed.python}, torch {installed.torch.version}"
    yield Diagnosis("software", f"specbench {installed.specbench}, {versions}")
    spec = structs.replace(spec, methods=(BASELINE,))  # only vanilla
    if spec.dtype == "auto" and spec.card.is_embedded:  # tiny, which ships with specbench
        # In half precision, which "auto" may take on a GPU, rounding could decide near-ties.
        spec = structs.replace(spec, dtype="float32")
    setup = make_engine_setup(spec, is_offline=is_offline)  # loads nothing yet
    device = setup.device
    if device.num_gpus and _version(installed.torch.version) < (2, 9):
        # A fact, not a failed check: older versions work.
        advice = "torch 2.9 or newer is better on a GPU: launches overlap, and captures are faster"
        yield Diagnosis("torch", advice)
    # `device.reason` is why no GPU can be used; it is empty if there is a GPU.
    no_gpu = f"; no GPU, because {device.reason}" if device.reason else ""
    yield Diagnosis("device", f"{device.name}{no_gpu}")
    yield Diagnosis("memory", f"{free_bytes(device.name) / 1e9:.1f} GB free on {device.name}")
    # New tunes are stored in the first folder, which is in the cache; older ones may be elsewhere.
    cache = tunes_folders()[0].parent
    num_tunes = len(stored_tunes())  # files of settings that `specbench tune` has stored
    yield Diagnosis("cache", f"{cache} ({CACHE_VARIABLE} moves it), tunes: {num_tunes}")
    with EngineBackend(setup) as backend:
        context = backend.target.context  # number of tokens that the model's context holds
        yield Diagnosis("model", f"{setup.card.title} in {setup.dtype}, context {context}")
        yield _threads(backend.describe().threads)  # how many, and who chose them
        yield _tree(backend.target)  # compares a branch of a draft tree with a plain forward
        yield from _baseline(setup, backend)  # compares vanilla with the model's own `generate`
        # The kinds of kernels that the device can run. Empty if the user chose a kind.
        kernel_kinds = device.kernels if spec.kernels == "auto" else ()
        # `unfused_reason` is why the target cannot use specbench's kernels; None if it can.
        if (reason := backend.target.unfused_reason) and kernel_kinds:
            yield Diagnosis("kernels", f"transformers computes the layers: {reason}")
            return
    del backend  # frees the model, as `_kernels` loads it anew
    yield from _kernels(spec, kernel_kinds, is_offline=is_offline)


def _kernels(spec: RunSpec, kinds: Sequence[str], *, is_offline: bool) -> Iterator[Diagnosis]:
    """Compare vanilla's tokens and times with each kind of kernels, one after the other.

    `spec` names the model and the device; with `is_offline`, nothing is downloaded. `kinds` are
    names of kinds of kernels. The first is "torch"; the other kinds must give the same tokens.
    Yields a Diagnosis for each kind: the time per token, and the check of a draft tree (`_tree`).
    """
    torch_token_ids: list[tuple[int, ...]] = []  # the token ids of each answer by torch
    for kind in kinds:
        _release()  # the model that was loaded before
        setup = make_engine_setup(structs.replace(spec, kernels=kind), is_offline=is_offline)
        with EngineBackend(setup) as backend:
            # The kernels' `name`, and the `reason` if specbench's own kernels are not used.
            kernels = describe_kernels(backend.target)
            tree_diagnosis = _tree(backend.target)
            # Completions (`result`) with their `seconds` [requests][rounds]. Each request has a
            # fixed prompt, and asks for NUM_TOKENS tokens.
            answers_by_request = [
                [_timed(backend.complete, BASELINE, request) for _ in range(NUM_KIND_ROUNDS + 1)]
                for request in _requests(setup)
            ]
        del backend  # lets `_release` free the model
        token_ids = [  # the token ids of each answer by this kind of kernels
            answer.result.token_ids for answers in answers_by_request for answer in answers
        ]
        is_torch = not torch_token_ids  # the first kind
        if is_torch:
            torch_token_ids = token_ids
        is_same = token_ids == torch_token_ids
        median_answer_s = statistics.median(  # seconds of a whole answer
            answer.seconds
            for answers in answers_by_request
            for answer in answers[1:]  # the first round warms up
        )
        token_ms = 1e3 * median_answer_s / NUM_TOKENS
        reason = f", because {kernels.reason}" if kernels.reason else ""
        summary = f"{token_ms:.2f} ms per token by {kernels.name}{reason}; {tree_diagnosis.text}"
        if not is_torch:
            summary += (
                f"; {'the same tokens as' if is_same else 'DIFFERENT tokens than'} with torch"
            )
        is_ok = tree_diagnosis.is_ok
        if not is_same:  # no verdict in half precision, where rounding may decide near-ties
            is_ok = False if setup.dtype == "float32" else None
        yield Diagnosis(f"kernels {kind}", summary, is_ok)


def _release() -> None:
    """Free the memory of a model that is no longer referenced, before the next one is loaded."""
    import torch

    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _version(version: str) -> tuple[int, ...]:
    """The first two numbers in the text of a version."""
    return tuple(int(number) for number in version.split(".")[:2] if number.isdigit())


def _threads(threads: Threads | None) -> Diagnosis:
    """The number of CPU threads, who chose it, and how threads wait."""
    assert threads is not None
    # `step_s` has the seconds of a step by number of threads tried.
    tried = ", ".join(f"{count}: {1e3 * step_s:.2f} ms" for count, step_s in threads.step_s.items())
    chosen_text = {
        "option": "given by --threads",
        "environment": "given by the environment",
        "torch": "torch's default",
        "measured": f"the fastest for a step ({tried})",
    }[threads.chosen_by]
    waiting_text = {
        "brief": "spin for some microseconds while they wait, then sleep",
        "passive": "sleep while they wait",
        "own": "wait as your environment variables say",
        "unknown": "may spin for a long time while they wait, which is slow beside other work",
    }[threads.waiting]
    return Diagnosis("threads", f"{threads.num}, {chosen_text}; they {waiting_text}")


def _tree(target: Target) -> Diagnosis:
    """Compare a branch of a draft tree with a plain sequence, whose last logits must agree.

    `target` is the loaded model. Returns the verdict, with the largest difference of logits.
    In the tree, node 0 is the prompt's last token, nodes 2 to 4 are the branch, and node 1 is
    another branch beside it. A wrong mask or position would change the logits of node 4 far more
    than rounding does.
    """
    import torch

    from specbench.engine.layers.torch_attention import without_cudnn_attention
    from specbench.engine.tree import DraftTree, TreeLayout

    prompt = (1, 5, 6, 7)  # arbitrary token ids
    branch = (8, 9, 10)  # arbitrary token ids
    with torch.inference_mode(), without_cudnn_attention():
        target.prefill(prompt)
        # The parent of each node; the root's parent is the root itself.
        layout = TreeLayout.from_parents([0, 0, 0, 2, 3], target.device)
        # The token of each node: the prompt's last token, the other branch's (11), the branch.
        node_ids = torch.tensor([prompt[-1], 11, *branch], device=target.device)
        tree = DraftTree(node_ids, layout, num_verify=5)  # all nodes, though none is accepted
        # The cache drops the prompt's last token, since node 0 computes it again.
        target.crop(len(prompt) - 1)
        tree_logits = target.forward(tree).logits[-1].float()  # logits of node 4 [vocab]
        with target.execution.paused():  # a captured graph would compute the prompt as a tree
            plain_logits = target.prefill((*prompt, *branch)).logits[-1].float()  # [vocab]
        difference = (tree_logits - plain_logits).abs().max().item()
    largest_logit = plain_logits.abs().max().item()
    # Rounding errors add up over the layers: 40 rounding errors of the largest logit are allowed.
    allowed = largest_logit * 40 * torch.finfo(target.dtype).eps
    is_ok = difference <= allowed
    return Diagnosis("tree", f"a branch differs from a plain forward by {difference:.1e}", is_ok)


def _baseline(setup: EngineSetup, backend: EngineBackend) -> Iterator[Diagnosis]:
    """Compare vanilla in our loop with the model's own `generate`, then measure the bandwidth.

    Yields a Diagnosis of the tokens, of the speed, and of the memory's bandwidth, with the part
    that vanilla uses. `setup` has the codec for the prompts, `backend` the loaded model.
    """
    target = backend.target
    do_tokens_agree = True
    loop_s: list[float] = []  # seconds of each answer of NUM_TOKENS tokens
    generate_s: list[float] = []  # seconds of the same answers by `generate`
    for request in _requests(setup):
        for round_number in range(NUM_ROUNDS + 1):
            # Each answer has its `seconds` and a `result`: a Completion from our loop, a list of
            # token ids from `generate`.
            loop_answer = _timed(backend.complete, BASELINE, request)
            generate_answer = _timed(generate, target, request.prompt_ids, NUM_TOKENS)
            loop_ids = tuple(loop_answer.result.token_ids)
            do_tokens_agree &= loop_ids == tuple(generate_answer.result)
            if round_number > 0:  # the first round warms up
                loop_s.append(loop_answer.seconds)
                generate_s.append(generate_answer.seconds)
    verb = "equals" if do_tokens_agree else "DIFFERS from"
    yield Diagnosis("baseline tokens", f"vanilla's output {verb} generate's", do_tokens_agree)
    # Our loop's time / `generate`'s time; a ratio up to MARGIN is within the scatter of timings.
    time_ratio = statistics.median(loop_s) / statistics.median(generate_s)
    tokens_per_s = NUM_TOKENS / statistics.median(loop_s)
    speed_text = f"{tokens_per_s:.0f} tokens/s, {1 / time_ratio:.1f} times as fast as generate"
    yield Diagnosis("baseline speed", speed_text, time_ratio <= MARGIN)
    # The memory's bandwidth, the bytes of weights that a step reads (`target_bytes`, with all
    # experts of a mixture), and the bytes of the last-level cache (`cache_bytes`, 0 if unknown).
    traffic = measure_traffic(target)
    bandwidths = {  # bytes per second; 0 if they cannot be measured in this way
        "by reads": traffic.bandwidth_bytes_per_s,
        "by copies": traffic.copy_bytes_per_s,
        "by clock and bus width": traffic.nominal_bytes_per_s,
    }
    bandwidths_text = ", ".join(
        f"{bytes_per_s / 1e9:.1f} GB/s {way}"
        for way, bytes_per_s in bandwidths.items()
        if bytes_per_s
    )
    yield Diagnosis(
        "memory bandwidth",
        f"{bandwidths_text}; vanilla reads its weights "
        f"({traffic.target_bytes / 1e6:.1f} MB per step, cache {traffic.cache_bytes / 1e6:.1f} MB) "
        f"at {traffic.target_bytes * tokens_per_s / 1e9:.1f} GB/s",
    )


def _requests(setup: EngineSetup) -> list[Request]:
    """A request for each of PROMPTS, with an answer of at most NUM_TOKENS tokens."""
    return [Request(setup.codec.render([user(prompt)]), NUM_TOKENS) for prompt in PROMPTS]


def generate(target: Target, ids: Sequence[int], num_tokens: int) -> list[int]:
    """Exactly `num_tokens` greedy tokens from the model's own `generate`."""
    import torch

    from specbench.engine.layers.torch_attention import without_cudnn_attention

    with without_cudnn_attention():
        out = target.model.generate(
            torch.tensor([ids], device=target.device),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[0, len(ids) :].tolist()


class _Timed(NamedTuple, Generic[T]):
    """A result and the seconds that it took."""

    seconds: float
    result: T


def _timed(call: Callable[..., T], *arguments: Any) -> _Timed[T]:
    began = time.perf_counter()
    result = call(*arguments)
    return _Timed(time.perf_counter() - began, result)
