"""Start llama.cpp, as `llama-server` or in the wheel xllamacpp, with the flags of build 11434.
Models are GGUF files.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from specbench.errors import UserError
from specbench.measure.server import llama_server, stream
from specbench.measure.server.engine import (
    DRAFT_COUNTERS,
    WHOLE,
    WHOLE_METHOD,
    Engine,
    EngineMethod,
    Launch,
    OptionValue,
    option_flags,
    set_flags,
)

_DRAFT: dict[str, type[OptionValue]] = {
    "draft_n_min": int,
    "draft_p_min": float,
    "draft_p_split": float,
}
"""Options of methods with draft weights."""
METHODS: dict[str, EngineMethod] = {
    "vanilla": EngineMethod("Vanilla"),
    "ngram": EngineMethod(
        "N-gram",
        5,
        engine_name="ngram-simple",
        options={"ngram_simple_size_n": int, "ngram_simple_min_hits": int},
    ),
    "sps": EngineMethod("SpS", 4, "sps", is_chain=True, engine_name="draft-simple", options=_DRAFT),
    "eagle3": EngineMethod("EAGLE-3", 4, "eagle3", engine_name="draft-eagle3", options=_DRAFT),
    "mtp": EngineMethod(
        "MTP",
        3,
        "mtp module",
        needs_weights=False,
        is_default=False,
        engine_name="draft-mtp",
        options=_DRAFT,
    ),
    "dflash": EngineMethod(
        "DFlash", 8, "dflash", is_default=False, engine_name="draft-dflash", options=_DRAFT
    ),
    "dspark": EngineMethod(
        "DSpark", 7, "dspark", is_default=False, engine_name="draft-dspark", options=_DRAFT
    ),
    "ngram_map_k": EngineMethod("N-gram map", is_default=False, engine_name="ngram-map-k"),
    "ngram_map_k4v": EngineMethod("N-gram map 4v", is_default=False, engine_name="ngram-map-k4v"),
    "ngram_mod": EngineMethod(
        "N-gram mod",
        scopes=("run",),
        is_default=False,
        engine_name="ngram-mod",
        options={"ngram_mod_n_match": int, "ngram_mod_n_min": int, "ngram_mod_n_max": int},
    ),
    "ngram_cache": EngineMethod("N-gram cache", is_default=False, engine_name="ngram-cache"),
    WHOLE: WHOLE_METHOD,
}
"""The methods of llama.cpp. All requests share the table of `ngram_mod`. Heads do not count as
chains, because they draft other tokens when there are several requests at once.
"""
_NGRAM_SIZE = 3
"""The length in tokens of the n-gram that is looked up, as long as PLD's longest."""

FLOAT32 = ("--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32")
"""Flags for float32 weights. Without them, flash attention and the cache stay in float16."""
FLOAT32_DRAFT = ("--cache-type-k-draft", "f32", "--cache-type-v-draft", "f32")
"""Flags for a float32 cache of a draft model."""


def _arguments(launch: Launch) -> list[str]:
    """The words of a server's command line, without the executable.

    `launch` is the server to start. Its `num_tokens` is the most tokens of a draft (0 if the method
    decides). Its `options` are the user's other options of the method, by name. For the method
    WHOLE, they are the user's whole configuration of speculation. `set_flags` leaves out flags that
    are None, 0 or empty.
    """
    method = METHODS[launch.method]
    is_ngram = launch.method == "ngram"
    # For ngram, True if the user did not choose the length of the n-gram that is looked up.
    has_default_size = is_ngram and "ngram_simple_size_n" not in launch.options
    flags = set_flags(
        model=gguf_file(launch.model),
        host="127.0.0.1",
        port=launch.port,
        alias=launch.served_name,
        ctx_size=launch.context * launch.num_at_once,  # llama.cpp divides it among the requests
        parallel=launch.num_at_once,
        metrics=True,
        no_cache_prompt=True,
        cache_ram="0",  # a text: set_flags leaves out the number 0
        spec_type=method.engine_name,
        # The most tokens that a model or a head drafts. These methods are named `draft-...`.
        spec_draft_n_max=launch.num_tokens if method.engine_name.startswith("draft-") else None,
        spec_ngram_simple_size_n=_NGRAM_SIZE if has_default_size else None,
        spec_ngram_simple_size_m=launch.num_tokens if is_ngram else None,  # tokens of a draft
        model_draft=gguf_file(launch.weights) if launch.weights else None,
    )
    # For example, "ngram_mod_n_min" becomes --spec-ngram-mod-n-min.
    flags += option_flags(launch.options, "--spec-")
    if launch.dtype == "float32":
        flags += FLOAT32
        if launch.weights:
            flags += FLOAT32_DRAFT
    return flags


def gguf_file(folder: Path) -> Path:
    """The GGUF file in a folder.

    Raises:
        UserError: the folder has no GGUF file, or several.
    """
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    count = f"{len(files)} GGUF files" if files else "no GGUF file"
    raise UserError(
        f"{folder} has {count}; llama.cpp needs one.",
        f"Convert the model with llama.cpp's script: convert_hf_to_gguf.py {folder} --outfile "
        f"{folder}/model.gguf",
    )


class _Timings(stream.Counts, frozen=True):
    """llama.cpp's times and counts of one answer, with its names."""

    num_drafted: int | None = field(default=None, name="draft_n")
    num_accepted: int | None = field(default=None, name="draft_n_accepted")
    prefill_ms: float | None = field(default=None, name="prompt_ms")
    decode_ms: float | None = field(default=None, name="predicted_ms")


class _Chunk(Struct, frozen=True):
    """An event of llama.cpp's `/completion`."""

    content: str = ""
    tokens: tuple[int, ...] = ()
    stop: bool = False
    stop_type: str = ""
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    timings: _Timings | None = None
    error: Any = None


_read_chunk = msgspec.json.Decoder(_Chunk).decode


def _body(model: str, ask: stream.ChatRequest) -> dict[str, Any]:
    """The JSON object of a request. `model` is not used: a llama.cpp server has one model."""
    return {
        "prompt": list(ask.request.prompt_ids),
        "n_predict": ask.request.max_new_tokens,
        "top_k": 0,
        "min_p": 0.0,
        **stream.sampling_values(ask.request),
        "stream": True,
        "return_tokens": True,
        "cache_prompt": False,
    }


def _read(event_json: bytes) -> stream.Event:
    """The event of one `data:` line. Only the last event has counts of the whole answer."""
    chunk = _read_chunk(event_json)
    if not chunk.stop:
        return stream.Event(
            chunk.content,
            chunk.tokens,
            finish=chunk.stop_type or None,
            error=stream.error_text(chunk.error),
        )
    return stream.Event(
        chunk.content,
        chunk.tokens,
        finish=chunk.stop_type or "none",
        num_tokens=chunk.tokens_predicted,
        prompt_tokens=chunk.tokens_evaluated,
        counts=chunk.timings,
        error=stream.error_text(chunk.error),
    )


ENGINE = Engine(
    title="llama.cpp",
    executable=("llama-server",),
    install="the wheel (`pip install xllamacpp`), or put a build of llama.cpp on the PATH",
    wheel="xllamacpp",
    launcher=llama_server,
    thread_variables={"LLAMA_ARG_THREADS": "{}", "LLAMA_ARG_THREADS_BATCH": "{}"},
    methods=METHODS,
    arguments=_arguments,
    check_folder=lambda folder, method: gguf_file(folder),
    version_keys={"/props": "build_info"},
    known_versions=("11434", "11549"),
    weight_bytes=lambda folder, dtype: gguf_file(folder).stat().st_size,
    process_bytes=5 * 10**8,
    fills_gpu=False,
    takes_size_per_request=True,
    own_flags=("-m", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-a", "-c", "-np", "-cram"),
    speculation_flags=(
        "-md",
        "--model-draft",
        "-hfd",
        "-hfrd",
        "--hf-repo-draft",
        "-td",
        "-cd",
        "-lcs",
        "--lookup-cache-static",
        "-lcd",
        "--lookup-cache-dynamic",
    ),
    protocol=stream.StreamProtocol(
        "llamacpp", "/completion", _body, _read, keeps_connections=False
    ),
    counters={
        **DRAFT_COUNTERS,
        "tokens_predicted": "num_tokens",
        "prompt_tokens_cached": "num_cached_tokens",
    },
)
