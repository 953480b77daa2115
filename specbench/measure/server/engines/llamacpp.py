"""llama.cpp: `llama-server`, or the wheel xllamacpp. Flags of b11434. Models are GGUF files."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from specbench.errors import UserError
from specbench.measure.server import llama_server, stream
from specbench.measure.server.engine import DRAFT_COUNTERS, METHODS, Engine, Launch, set_flags

_SPECULATION_TYPES = {"ngram": "ngram-simple", "sps": "draft-simple", "eagle3": "draft-eagle3"}
"""llama.cpp's names of the methods."""
_NGRAM_SIZE = 3
"""Length of the n-gram that is looked up: the longest of PLD's."""

FLOAT32 = ("--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32")
"""By default flash attention and the cache are in float16, also with float32 weights."""
FLOAT32_DRAFT = ("--cache-type-k-draft", "f32", "--cache-type-v-draft", "f32")
"""The same for the cache of a draft model."""


def _arguments(launch: Launch) -> list[str]:
    """The command line of a server."""
    is_ngram = launch.method == "ngram"
    flags = set_flags(
        model=gguf_file(launch.model),
        host="127.0.0.1",
        port=launch.port,
        alias=launch.served_name,
        ctx_size=launch.context * launch.num_at_once,
        parallel=launch.num_at_once,
        metrics=True,
        no_cache_prompt=True,
        cache_ram="0",
        spec_type=_SPECULATION_TYPES.get(launch.method),
        spec_draft_n_max=launch.num_tokens if launch.weights else None,
        spec_ngram_simple_size_n=_NGRAM_SIZE if is_ngram else None,
        spec_ngram_simple_size_m=launch.num_tokens if is_ngram else None,
        model_draft=gguf_file(launch.weights) if launch.weights else None,
    )
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
    """The JSON of a request."""
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


def _read(data: bytes) -> stream.Event:
    """The event of one `data:` line. Only the last one has counts of the whole answer."""
    chunk = _read_chunk(data)
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
    methods={name: METHODS[name] for name in ("vanilla", *_SPECULATION_TYPES)},
    arguments=_arguments,
    check_folder=lambda folder, method: gguf_file(folder),
    version=("/props", "build_info"),
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
