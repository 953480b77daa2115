"""Checks of a machine: what it can run, and whether its baseline can be trusted."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import structs

from specbench.log.machine import Threads
from specbench.machine import environment
from specbench.machine.memory import free_bytes
from specbench.measure.local.engine import EngineBackend, describe_kernels
from specbench.measure.local.engine_setup import EngineSetup, make_engine_setup
from specbench.measure.local.traffic import measure_traffic
from specbench.measure.methods import BASELINE
from specbench.measure.spec import RunSpec
from specbench.types import Request

if TYPE_CHECKING:
    from specbench.engine.target import Target

T = TypeVar("T")
PROMPTS = (
    "Write a short letter to a friend about the sea.",
    "What is the capital of France, and which river runs through it?",
    "Count from one to twenty.",
)
NUM_TOKENS, NUM_ROUNDS, NUM_KIND_ROUNDS = 64, 5, 2
MARGIN = 1.05
"""Ratio of times from which our loop counts as slower: these timings scatter by a few percent."""


class Diagnosis(NamedTuple):
    """The result of one check. `is_ok` None is a fact without a verdict."""

    name: str
    text: str
    is_ok: bool | None = None


def examine(spec: RunSpec, *, is_offline: bool) -> Iterator[Diagnosis]:
    """The lines of `specbench doctor`, for the model, device, threads and weights of a spec."""
    facts = environment.capture()
    versions = f"Python {facts.python}, torch {facts.torch.version}"
    yield Diagnosis("software", f"specbench {facts.specbench}, {versions}")
    spec = structs.replace(spec, methods=(BASELINE,))
    if spec.dtype == "auto" and spec.card.is_embedded:
        spec = structs.replace(spec, dtype="float32")  # in float16, ties may go either way
    setup = make_engine_setup(spec, is_offline=is_offline)
    if setup.device.num_gpus and _version(facts.torch.version) < (2, 9):
        text = "torch 2.9 or newer is better on a GPU: launches overlap, and captures are faster"
        yield Diagnosis("torch", text)
    where, why = setup.device.name, setup.device.reason
    yield Diagnosis("device", f"{where}; no GPU, because {why}" if why else where)
    yield Diagnosis("memory", f"{free_bytes(where) / 1e9:.1f} GB free on {where}")
    with EngineBackend(setup) as backend:
        context = backend.target.context
        yield Diagnosis("model", f"{setup.card.title} in {setup.dtype}, context {context}")
        yield _threads(backend.describe().threads)
        yield _tree(backend.target)
        yield from _baseline(setup, backend)
        kinds = setup.device.kernels if spec.kernels == "auto" else ()
        if (reason := backend.target.unfused_reason) and kinds:
            yield Diagnosis("kernels", f"transformers computes the layers: {reason}")
            return
    del backend
    yield from _kernels(spec, kinds, is_offline=is_offline)


def _kernels(spec: RunSpec, kinds: Sequence[str], *, is_offline: bool) -> Iterator[Diagnosis]:
    """Compare vanilla's tokens and times with each kind of kernels, one after the other."""
    by_torch: list[tuple[int, ...]] = []
    for kind in kinds:
        _release()
        setup = make_engine_setup(structs.replace(spec, kernels=kind), is_offline=is_offline)
        with EngineBackend(setup) as backend:
            used, tree = describe_kernels(backend.target), _tree(backend.target)
            rounds = [
                [_timed(backend.complete, BASELINE, one) for _ in range(NUM_KIND_ROUNDS + 1)]
                for one in _requests(setup)
            ]
        del backend
        tokens = [done.token_ids for timed in rounds for _, done in timed]
        is_same = tokens == (by_torch or tokens)
        step_s = statistics.median(s for timed in rounds for s, _ in timed[1:]) / NUM_TOKENS
        why = f", because {used.reason}" if used.reason else ""
        text = f"{1e3 * step_s:.2f} ms a token by {used.name}{why}; {tree.text}"
        if by_torch:
            text += f"; {'the same' if is_same else 'OTHER'} tokens as with torch"
        by_torch = by_torch or tokens
        # In half precision, rounding may turn near-ties.
        is_ok = None if setup.dtype != "float32" else False
        yield Diagnosis(f"kernels {kind}", text, tree.is_ok if is_same else is_ok)


def _release() -> None:
    """Free the memory of a model that nothing holds, before the next one is loaded."""
    import torch

    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def _threads(found: Threads | None) -> Diagnosis:
    """The number of CPU threads, who chose it, and how threads wait."""
    assert found is not None
    tried = ", ".join(f"{count}: {1e3 * s:.2f} ms" for count, s in found.step_s.items())
    chosen = {
        "option": "given by --threads",
        "environment": "given by the environment",
        "torch": "torch's default",
        "measured": f"the fastest for a step ({tried})",
    }[found.chosen_by]
    wait = {
        "brief": "spin for some microseconds while they wait, then sleep",
        "passive": "sleep while they wait",
        "own": "wait as your variables say",
        "unknown": "may spin for long while they wait, which is slow beside other work",
    }[found.waiting]
    return Diagnosis("threads", f"{found.num}, {chosen}; they {wait}")


def _tree(target: Target) -> Diagnosis:
    """Compare a branch of a tree with a plain sequence: the logits must agree."""
    import torch

    from specbench.engine.layers.torch_attention import without_cudnn_attention
    from specbench.engine.tree import DraftTree, TreeLayout

    prompt, branch = (1, 5, 6, 7), (8, 9, 10)
    with torch.inference_mode(), without_cudnn_attention():
        target.prefill(prompt)
        layout = TreeLayout.from_parents([0, 0, 0, 2, 3], target.device)
        tokens = torch.tensor([7, 11, *branch], device=target.device)
        tree = DraftTree(tokens, layout, num_verify=5)
        target.crop(len(prompt) - 1)
        on_tree = target.forward(tree).logits[-1].float()
        plain = target.prefill((*prompt, *branch)).logits[-1].float()
        difference = (on_tree - plain).abs().max().item()
    scale = plain.abs().max().item()
    is_ok = difference <= scale * 40 * torch.finfo(target.dtype).eps
    text = f"a branch differs from a plain forward by {difference:.1e}"
    return Diagnosis("tree", text, is_ok)


def _baseline(setup: EngineSetup, backend: EngineBackend) -> Iterator[Diagnosis]:
    """Compare vanilla in our loop with the model's own `generate`: tokens and speed.

    Then the memory's bandwidth, and how much of it vanilla uses.
    """
    target = backend.target
    tokens_agree, ours_s, theirs_s = True, [], []
    for request in _requests(setup):
        for turn in range(NUM_ROUNDS + 1):
            seconds, ours = _timed(backend.complete, BASELINE, request)
            other_s, theirs = _timed(generate, target, request.prompt_ids, NUM_TOKENS)
            tokens_agree &= tuple(ours.token_ids) == tuple(theirs)
            if turn:  # the first round warms up
                ours_s.append(seconds)
                theirs_s.append(other_s)
    text = "vanilla in our loop " + ("equals" if tokens_agree else "DIFFERS from") + " generate"
    yield Diagnosis("baseline tokens", text, tokens_agree)
    ratio = statistics.median(ours_s) / statistics.median(theirs_s)
    rate = NUM_TOKENS / statistics.median(ours_s)
    text = f"{rate:.0f} tokens/s, {1 / ratio:.1f} times as fast as generate"
    yield Diagnosis("baseline speed", text, ratio <= MARGIN)
    found = measure_traffic(target)
    yield Diagnosis(
        "memory bandwidth",
        f"{found.bandwidth_bytes_per_s / 1e9:.1f} GB/s; vanilla reads its weights "
        f"({found.target_bytes / 1e6:.1f} MB a step, cache {found.cache_bytes / 1e6:.1f} MB) "
        f"at {found.target_bytes * rate / 1e9:.1f} GB/s",
    )


def _requests(setup: EngineSetup) -> list[Request]:
    chats = ([{"role": "user", "content": prompt}] for prompt in PROMPTS)
    return [Request(setup.codec.render(chat), NUM_TOKENS) for chat in chats]


def generate(target: Target, ids: Sequence[int], num_tokens: int) -> list[int]:
    """Exactly `num_tokens` greedy tokens by the model's own `generate`."""
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


def _timed(call: Callable[..., T], *given: Any) -> tuple[float, T]:
    """Seconds of a call, and its result."""
    began = time.perf_counter()
    result = call(*given)
    return time.perf_counter() - began, result
