"""The values of a run in its header, in effect and as the user gave them.

Knows names, types and defaults. What values may be is the business of `run.spec`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from specbench.types import doc


class SpecValues(Struct, frozen=True):
    """All values of a run. A value that an older version did not write has its default."""

    model: Annotated[str, doc("name, folder or Hub id of the model")] = "tiny"
    methods: Annotated[tuple[str, ...], doc("methods with their given options")] = ()
    tasks: Annotated[tuple[str, ...], doc("names of the tasks")] = ()
    prompts: Annotated[str, doc("bundled, paper, hub, or a file; auto as asked")] = "auto"
    pad_to: Annotated[
        tuple[int, ...], doc("tokens of prompts cut from a text file; absent for other prompts")
    ] = ()
    limit: Annotated[int | None, doc("first prompts per task; null for all")] = None
    sample: Annotated[int | None, doc("prompts per task, drawn with the seed; null for all")] = None
    temperatures: Annotated[tuple[float, ...], doc("sampling temperatures; 0 is greedy")] = (0.0,)
    top_p: Annotated[float, doc("nucleus sampling above temperature 0; 1 is off")] = 1.0
    top_k: Annotated[int, doc("sampling among the k most likely tokens; 0 is off")] = 0
    max_new_tokens: Annotated[
        int | None, doc("token budget of an answer; null for the model's default")
    ] = None
    repeats: Annotated[int | None, doc("passes over all prompts; null to choose")] = 1
    until_ci: Annotated[
        float | None, doc("half width of the mean speedups' intervals that ends the passes")
    ] = None
    seed: Annotated[int, doc("seed of every draw")] = 0
    device: Annotated[str, doc("auto, cpu, cuda, cuda:1 or cuda:0-1")] = "auto"
    threads: Annotated[int | None, doc("CPU threads of one operation; null to choose")] = None
    dtype: Annotated[str, doc("auto, float32, bfloat16 or float16")] = "auto"
    quantize: Annotated[str, doc("int8 or int4 weights; absent for those of the checkpoint")] = ""
    template: Annotated[str, doc("chat template: auto, none, thinking or a name")] = "auto"
    history: Annotated[
        Literal["shared", "own"], doc("earlier answers in a chat: the first method's, or its own")
    ] = "shared"
    is_baseline_run: Annotated[bool, doc("vanilla is run even if it is not asked for")] = True
    phases: Annotated[bool, doc("phases of every step are timed")] = False
    weights: Annotated[str, doc("hub or stand-in")] = "hub"
    execution: Annotated[str, doc("auto, eager or graph")] = "auto"
    trace: Annotated[bool, doc("the tree of every step is kept in trace.jsonl")] = False
    check_drafts: Annotated[bool, doc("every draft tree was checked, within the timed steps")] = (
        False
    )
    backend: Annotated[str, doc("server; absent for the engine in this process")] = ""
    serving_engine: Annotated[
        str, doc("engine that is started as a server: vllm, sglang or llamacpp; else absent")
    ] = ""
    engine_command: Annotated[
        tuple[str, ...], doc("command of that engine; absent for the usual one")
    ] = ()
    engine_args: Annotated[tuple[str, ...], doc("further arguments of that command")] = ()
    urls: Annotated[tuple[str, ...], doc("addresses of running servers; absent if none")] = ()
    labels: Annotated[tuple[str, ...], doc("methods that these servers run")] = ()
    served_model: Annotated[str, doc("the model's name at the servers, if it was given")] = ""
    concurrency: Annotated[tuple[int, ...], doc("loads of a server: requests at once")] = ()
    request_rates: Annotated[
        tuple[float, ...], doc("loads of a server: requests per second, at random times")
    ] = ()
    goodput: Annotated[
        str, doc("limits in milliseconds that a request must keep, such as ttft:500,tpot:50")
    ] = ""
    request_timeout_s: Annotated[
        float | None, doc("most seconds of a request to a server; absent for the default")
    ] = None


class SpecHeader(Struct, frozen=True):
    """The specification of a run."""

    values: Annotated[SpecValues, doc("values in effect")]
    asked: Annotated[SpecValues | None, doc("values as the user gave them")] = None
    given: Annotated[tuple[str, ...], doc("options that the user gave")] = ()
