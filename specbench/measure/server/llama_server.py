"""Serve a GGUF file with the wheel xllamacpp, and take flags of `llama-server`.

`python llama_server.py --model FILE --port N ...` runs until it is ended. It is a separate script,
like the keeper, so that only its process loads the wheel. The wheel's parameters do not have the
defaults of `llama-server`, so this script sets every parameter that a run relies on.
"""

import argparse
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

_DRAFT = "speculative.draft"
"""The field of CommonParams with the parameters of the draft model."""


@dataclass(frozen=True)
class _Flag:
    """A flag of `llama-server`."""

    fields: tuple[str, ...]
    """The fields of CommonParams that it sets."""
    default: Any
    """The flag's text or number if it is not given."""
    is_free: bool = False
    """True if a user may add the flag (with --engine-args)."""
    convert: Callable[[Any, Any], Any] = lambda module, argument: argument
    """Makes the value of the fields from the wheel's module and the flag's text or number."""


def _cache_type(module: Any, name: str) -> Any:
    """The wheel's value for a dtype, such as "f16"."""
    return getattr(module.ggml_type, f"GGML_TYPE_{name.upper()}")


def _flash_attention(module: Any, word: str) -> Any:
    """The wheel's value for "on", "off" or "auto"."""
    name = {"on": "ENABLED", "off": "DISABLED"}.get(word, "AUTO")
    return getattr(module.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{name}")


def _speculation(module: Any, name: str) -> Any:
    """The wheel's value for a kind of speculation, which is a list of one kind."""
    kinds = module.common_speculative_type
    return [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{name.replace('-', '_').upper()}")]


def _num_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _fields(parents: Sequence[str], name: str) -> tuple[str, ...]:
    """The paths of the fields that have this name in several parents."""
    return tuple(f"{parent}.{name}" for parent in parents)


def _cache_flag(field: str) -> _Flag:
    """A flag for the dtype of a cache."""
    return _Flag((field,), "f16", is_free=True, convert=_cache_type)


def _flags() -> dict[str, _Flag]:
    """All flags, by name. Numbers of threads come from the environment, or are one per core.

    A pool is a field of CommonParams with the parameters of threads. The target model and the draft
    model each have a pool for single tokens, and a pool for batches (of a prompt or a draft).
    """
    num_threads = int(os.environ.get("LLAMA_ARG_THREADS") or _num_cores())
    num_batch_threads = int(os.environ.get("LLAMA_ARG_THREADS_BATCH") or num_threads)
    pools = ("cpuparams", f"{_DRAFT}.cpuparams")
    batch_pools = ("cpuparams_batch", f"{_DRAFT}.cpuparams_batch")
    return {
        "--model": _Flag(("model.path",), ""),
        "--model-draft": _Flag((f"{_DRAFT}.mparams.path",), ""),
        "--host": _Flag(("hostnames",), "127.0.0.1", convert=lambda module, name: [name]),
        "--port": _Flag(("port",), 8080),
        "--alias": _Flag(("model_alias",), "model", convert=lambda module, name: {name}),
        "--ctx-size": _Flag(("n_ctx",), 4096),
        "--parallel": _Flag(("n_parallel",), 1),
        "--cache-ram": _Flag(("cache_ram_mib",), 0),
        "--batch-size": _Flag(("n_batch",), 2048, is_free=True),
        "--ubatch-size": _Flag(("n_ubatch",), 512, is_free=True),
        "--threads": _Flag(_fields(pools, "n_threads"), num_threads, is_free=True),
        "--threads-batch": _Flag(
            _fields(batch_pools, "n_threads"), num_batch_threads, is_free=True
        ),
        "--poll": _Flag(_fields((*pools, *batch_pools), "poll"), 0, is_free=True),
        "--flash-attn": _Flag(("flash_attn_type",), "auto", is_free=True, convert=_flash_attention),
        "--cache-type-k": _cache_flag("cache_type_k"),
        "--cache-type-v": _cache_flag("cache_type_v"),
        "--cache-type-k-draft": _cache_flag(f"{_DRAFT}.cache_type_k"),
        "--cache-type-v-draft": _cache_flag(f"{_DRAFT}.cache_type_v"),
        "--spec-type": _Flag(("speculative.types",), "none", convert=_speculation),
        "--spec-draft-n-max": _Flag((f"{_DRAFT}.n_max",), 4),
        "--spec-draft-n-min": _Flag((f"{_DRAFT}.n_min",), 0),
        "--spec-draft-p-min": _Flag((f"{_DRAFT}.p_min",), 0.0),
        "--spec-draft-p-split": _Flag((f"{_DRAFT}.p_split",), 0.1),
        "--spec-ngram-simple-min-hits": _Flag(("speculative.ngram_simple.min_hits",), 1),
        "--spec-ngram-mod-n-match": _Flag(("speculative.ngram_mod.n_match",), 24),
        "--spec-ngram-mod-n-min": _Flag(("speculative.ngram_mod.n_min",), 48),
        "--spec-ngram-mod-n-max": _Flag(("speculative.ngram_mod.n_max",), 64),
        "--spec-ngram-simple-size-n": _Flag(("speculative.ngram_simple.size_n",), 3),
        "--spec-ngram-simple-size-m": _Flag(("speculative.ngram_simple.size_m",), 5),
    }


def free_flags() -> list[str]:
    """The flags that a user may add."""
    return [name for name, flag in _flags().items() if flag.is_free]


def refusal(words: Sequence[str]) -> str:
    """The reason why a user's arguments cannot be passed to the wheel. Empty if they can."""
    free = {name: flag for name, flag in _flags().items() if flag.is_free}
    try:
        _, unknown = _parser(free).parse_known_args(words)
    except argparse.ArgumentError as error:
        return f"{error}."
    return f"the wheel's server does not take {unknown[0]}." if unknown else ""


def _parser(flags: Mapping[str, _Flag]) -> argparse.ArgumentParser:
    """The parser of a command line with these flags."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    for name, flag in flags.items():
        parser.add_argument(name, dest=name, type=type(flag.default), default=flag.default)
    return parser


def main() -> None:
    """Load the model, serve it with the wheel xllamacpp, and wait until a signal ends it."""
    flags = _flags()  # by name, such as "--port"; each flag sets fields of the wheel's parameters
    parser = _parser(flags)
    for name in ("--metrics", "--no-cache-prompt"):  # accepted, but always in effect
        parser.add_argument(name, action="store_true")
    arguments = vars(parser.parse_args())  # texts and numbers by flag, the default if not given
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.endpoint_metrics = True
    params.cache_prompt = False
    for name, flag in flags.items():
        argument = arguments[name]
        if argument in ("", "none"):  # no file or no speculation: keep the wheel's default
            continue
        setting = flag.convert(xllamacpp, argument)  # in the wheel's type
        for field in flag.fields:  # paths in `params`, such as "speculative.draft.n_max"
            *parents, attribute = field.split(".")
            holder = reduce(getattr, parents, params)  # params.speculative.draft
            setattr(holder, attribute, setting)
    server = xllamacpp.Server(params)
    print(f"Serving at {server.listening_address}", flush=True)
    signal.pause()  # the server runs in threads of the wheel until a signal ends the process


if __name__ == "__main__":
    main()
