"""Serves a GGUF file by the wheel xllamacpp, with flags of `llama-server`.

`python llama_server.py --model FILE --port N ...` runs until it is ended. A script of its own, as
the keeper is: the wheel is loaded in its process alone. The wheel's parameters start without the
defaults of a command line, so this sets every one that a run relies on.
"""

import argparse
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

_DRAFT = "speculative.draft"


@dataclass(frozen=True)
class _Flag:
    """A flag: the fields of CommonParams that it sets, and its default.

    `value` makes the field's value of the wheel's module and the flag's text or number. An
    `is_free` flag may be among a user's further arguments.
    """

    fields: tuple[str, ...]
    default: Any
    is_free: bool = False
    value: Callable[[Any, Any], Any] = lambda module, given: given


def _cache_type(module: Any, name: str) -> Any:
    return getattr(module.ggml_type, f"GGML_TYPE_{name.upper()}")


def _flash_attention(module: Any, word: str) -> Any:
    name = {"on": "ENABLED", "off": "DISABLED"}.get(word, "AUTO")
    return getattr(module.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{name}")


def _speculation(module: Any, name: str) -> Any:
    kinds = module.common_speculative_type
    return [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{name.replace('-', '_').upper()}")]


def _flags() -> dict[str, _Flag]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = int(os.environ.get("LLAMA_ARG_THREADS") or cores or 1)
    batch = int(os.environ.get("LLAMA_ARG_THREADS_BATCH") or threads)
    pools = ("cpuparams", "cpuparams_batch", f"{_DRAFT}.cpuparams", f"{_DRAFT}.cpuparams_batch")
    return {
        "--model": _Flag(("model.path",), ""),
        "--model-draft": _Flag((f"{_DRAFT}.mparams.path",), ""),
        "--host": _Flag(("hostnames",), "127.0.0.1", value=lambda module, name: [name]),
        "--port": _Flag(("port",), 8080),
        "--alias": _Flag(("model_alias",), "model", value=lambda module, name: {name}),
        "--ctx-size": _Flag(("n_ctx",), 4096),
        "--parallel": _Flag(("n_parallel",), 1),
        "--cache-ram": _Flag(("cache_ram_mib",), 0),
        "--batch-size": _Flag(("n_batch",), 2048, is_free=True),
        "--ubatch-size": _Flag(("n_ubatch",), 512, is_free=True),
        "--threads": _Flag(tuple(f"{one}.n_threads" for one in pools[::2]), threads, True),
        "--threads-batch": _Flag(tuple(f"{one}.n_threads" for one in pools[1::2]), batch, True),
        "--poll": _Flag(tuple(f"{one}.poll" for one in pools), 0, is_free=True),
        "--flash-attn": _Flag(("flash_attn_type",), "auto", True, _flash_attention),
        "--cache-type-k": _Flag(("cache_type_k",), "f16", True, _cache_type),
        "--cache-type-v": _Flag(("cache_type_v",), "f16", True, _cache_type),
        "--cache-type-k-draft": _Flag((f"{_DRAFT}.cache_type_k",), "f16", True, _cache_type),
        "--cache-type-v-draft": _Flag((f"{_DRAFT}.cache_type_v",), "f16", True, _cache_type),
        "--spec-type": _Flag(("speculative.types",), "none", value=_speculation),
        "--spec-draft-n-max": _Flag((f"{_DRAFT}.n_max",), 4),
        "--spec-draft-n-min": _Flag((f"{_DRAFT}.n_min",), 0, is_free=True),
        "--spec-draft-p-min": _Flag((f"{_DRAFT}.p_min",), 0.0, is_free=True),
        "--spec-ngram-simple-size-n": _Flag(("speculative.ngram_simple.size_n",), 3),
        "--spec-ngram-simple-size-m": _Flag(("speculative.ngram_simple.size_m",), 5),
    }


def free_flags() -> list[str]:
    """The flags that a user may add."""
    return [name for name, flag in _flags().items() if flag.is_free]


def refusal(words: Sequence[str]) -> str:
    """The reason why a user's arguments cannot be passed to the wheel; empty if they can."""
    flags = _flags()
    try:
        _, unknown = _parser({name: flags[name] for name in free_flags()}).parse_known_args(words)
    except argparse.ArgumentError as error:
        return f"{error}."
    return f"the wheel's server does not take {unknown[0]}." if unknown else ""


def _parser(flags: Mapping[str, _Flag]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    for name, flag in flags.items():
        parser.add_argument(name, dest=name, type=type(flag.default), default=flag.default)
    return parser


def main() -> None:
    """Load the model, serve it, and wait for the end."""
    flags = _flags()
    parser = _parser(flags)
    for name in ("--metrics", "--no-cache-prompt"):  # both are always in effect
        parser.add_argument(name, action="store_true")
    given = vars(parser.parse_args())
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.endpoint_metrics, params.cache_prompt = True, False
    for name, flag in flags.items():
        if given[name] in ("", "none"):
            continue
        value = flag.value(xllamacpp, given[name])
        for field in flag.fields:
            *parents, last = field.split(".")
            setattr(reduce(getattr, parents, params), last, value)
    server = xllamacpp.Server(params)
    print(f"Serving at {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
