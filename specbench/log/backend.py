"""The parts of a run's header that its backend reports: preparation, kernels, servers, traffic."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from specbench.log.machine import UNKNOWN, CpuUse, Environment, GpuUse, Threads
from specbench.log.roles import told
from specbench.types import doc


class Preparation(Struct, frozen=True, omit_defaults=True):
    """Seconds before the first sample."""

    load_s: Annotated[float, doc("seconds to load the models")]
    warm_up_s: Annotated[
        float | None, doc("seconds of warm-up; absent if nothing was left to run")
    ] = None
    num_late: Annotated[int, doc("CUDA graphs captured after the warm-up; absent if none")] = 0


class HookTimes(Struct, frozen=True, omit_defaults=True):
    """Seconds that a method's own code took where no completion is timed."""

    build_s: Annotated[float, doc("seconds to build the drafter, with loading its weights")] = 0.0
    remember_s: Annotated[float, doc("seconds of `remember`, after completions")] = 0.0
    forget_s: Annotated[float, doc("seconds of `forget`, before each pass")] = 0.0


class WeightsPrint(Struct, frozen=True):
    """Fingerprints of the target's weights as loaded and at the end of the run."""

    at_load: Annotated[str, doc("fingerprint before the methods were built")]
    at_end: Annotated[str, doc("fingerprint of the same numbers after the last completion")]
    share: Annotated[float, doc("share of the weights' bytes: less than 1 is a drawn sample")]
    seconds: Annotated[float, doc("seconds that both took")]
    skipped: Annotated[tuple[str, ...], doc("weights that are not in memory")] = ()


class RooflineHeader(Struct, frozen=True, omit_defaults=True):
    """Memory bandwidth, and the bytes that a step reads."""

    bandwidth_bytes_per_s: Annotated[float, doc("measured bandwidth of the memory")]
    cache_bytes: Annotated[int, doc("size of the last-level cache; 0 if unknown")]
    target_bytes: Annotated[int, doc("bytes of weights that a target forward reads")]
    kv_bytes_per_token: Annotated[int, doc("bytes of keys and values per token")]
    is_mixture_of_experts: Annotated[bool, doc("a step reads only a part of target_bytes")]
    draft_bytes: Annotated[
        dict[str, float], doc("bytes that a method's mean draft reads, by method")
    ] = {}
    bandwidth_by_threads: Annotated[
        dict[str, float], doc("bandwidth by number of CPU threads; absent if all have one")
    ] = {}
    block_bytes: Annotated[
        int, doc("bytes that a CPU read, or a GPU copied, to measure it; 0 if unknown")
    ] = 0


class ProductChoice(Struct, frozen=True):
    """The launch of a linear layer on a GPU, chosen by time and by result."""

    rows: Annotated[int, doc("most rows of tokens that it is for")]
    weight: Annotated[tuple[int, int], doc("output and input size of the weight")]
    is_gated: Annotated[bool, doc("gate and up projection in one weight")]
    launch: Annotated[str, doc("the launch chosen: a kernel of ours, or torch")]
    chain_us: Annotated[
        dict[str, float], doc("microseconds of the layers around it, by launch tried")
    ]
    rejected: Annotated[dict[str, str], doc("launches not used, with the reason")]


class Kernels(Struct, frozen=True, omit_defaults=True):
    """The code that computes the layers."""

    name: Annotated[
        str,
        told(
            "kernels",
            "transformers, torch, triton with its version, or native code with its compiler",
        ),
    ]
    reason: Annotated[str | None, doc("why our own kernels are not used")]
    products: Annotated[
        tuple[ProductChoice, ...], doc("launches of linear layers; absent without a choice")
    ] = ()


class ExecutionHeader(Struct, frozen=True, omit_defaults=True):
    """The execution of a method's steps."""

    mode: Annotated[
        Literal["eager", "graph"],
        told("execution", "one by one, or replayed as CUDA graphs"),
    ]
    reason: Annotated[str | None, doc("why graphs are not used")]
    layer_inputs: Annotated[
        tuple[int, ...], doc("target layers whose inputs the drafter reads; absent if none")
    ] = ()
    weights_layout: Annotated[
        str, doc("published layout of the drafter's checkpoint; absent if there is only one")
    ] = ""
    has_guessed_layers: Annotated[
        bool, doc("no option and no config named the layers: a formula did")
    ] = False


class ServerHeader(Struct, frozen=True, omit_defaults=True):
    """The server of a method."""

    url: Annotated[str, doc("address")]
    software: Annotated[str, doc("name and version; `unknown` if the server does not say")]
    model: Annotated[str, doc("name of the model at the server")]
    protocol: Annotated[str, doc("form of requests: completions, chat, or an engine's own")]
    sends_token_ids: Annotated[
        bool, doc("answers come as token ids; else their text is tokenised")
    ] = False
    command: Annotated[
        tuple[str, ...],
        doc("command that started it, with files but no folders; absent for a given URL"),
    ] = ()

    @property
    def software_phrase(self) -> str:
        """Name and version in words. A build of llama.cpp may have its number alone."""
        known = self.software.removesuffix("-unknown")
        name = known.removesuffix(UNKNOWN).strip()
        return known if known == name else f"{name}, version unknown".removeprefix(", ")


class BlockHeader(Struct, frozen=True, omit_defaults=True):
    """The requests of one method on one task at one load, measured in one go."""

    method: Annotated[str, doc("method")]
    temperature: Annotated[float, doc("sampling temperature")]
    task: Annotated[str, doc("task")]
    repeat: Annotated[int, doc("pass over the prompts")]
    duration_s: Annotated[
        float,
        doc("seconds from the first request to the last answer, without writing records between"),
    ]
    num_requests: Annotated[int, doc("requests")]
    num_failed: Annotated[int, doc("requests that failed")] = 0
    num_tokens: Annotated[int, doc("tokens of the answers that did not fail")] = 0
    num_before: Annotated[
        int, doc("requests of the block done before it was interrupted; absent if none")
    ] = 0
    client_s: Annotated[float, doc("CPU seconds of the client")] = 0.0
    concurrency: Annotated[int, doc("requests at once")] = 0
    request_rate: Annotated[float, doc("requests per second")] = 0.0
    counters: Annotated[
        dict[str, float], doc("increase of the server's counters; absent if it has none")
    ] = {}


class WorkerHeader(Struct, frozen=True, omit_defaults=True):
    """A process of a cluster that completed samples of the run."""

    node: Annotated[str, doc("first digits of Ray's id of the machine")]
    gpu_ids: Annotated[tuple[str, ...], doc("numbers of its GPUs there; empty for a CPU")]
    environment: Annotated[Environment, doc("hardware and software of that machine")]
    preparation: Annotated[Preparation | None, doc("times before its first sample")] = None
    threads: Annotated[Threads | None, doc("its CPU threads")] = None
    roofline: Annotated[RooflineHeader | None, doc("its memory traffic")] = None
    gpu: Annotated[GpuUse | None, doc("its GPU during the run; absent on a CPU")] = None
    cpu: Annotated[CpuUse | None, doc("its processor during the run")] = None
