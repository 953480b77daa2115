"""OpenVINO GenAI as a peer: its pipelines in a process of their own, with their own interpreter.

    optimum-cli export openvino -m FOLDER --task text-generation-with-past --weight-format fp32 DIR

exports a model, and `convert_tokenizer FOLDER -o DIR --with-detokenizer` adds its tokenizer, which
a draft model needs. As a program, `python openvino_peer.py DIR THREADS NUM_TOKENS [sps|pld]` reads
requests, a line of JSON each, and answers with the number of new tokens. It needs openvino-genai,
and no package of the project.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.peers import Complete

NUM_DRAFTED, NGRAM = 4, 3
"""Tokens of a draft, and the longest n-gram looked up."""
KINDS = {"OpenVINO": "", "OpenVINO sps": "sps", "OpenVINO pld": "pld"}


def openvino(
    stack: ExitStack, python: Path, models: Path, num_tokens: int, num_threads: int
) -> dict[str, Complete]:
    """Vanilla, a draft model and prompt lookup. `models` holds `target/` and `sps/`."""
    return {
        name: _started(stack, [python, __file__, models, num_threads, num_tokens, kind])
        for name, kind in KINDS.items()
    }


def _started(stack: ExitStack, words: Sequence[object]) -> Complete:
    process = subprocess.Popen(
        [str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.callback(_end, process)
    return partial(_ask, process)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with suppress(BrokenPipeError), process:  # which closes the pipes and waits
        pass


def _ask(process: subprocess.Popen[str], ids: Sequence[int]) -> int:
    assert process.stdin and process.stdout
    with suppress(BrokenPipeError):  # then there is no answer either
        process.stdin.write(json.dumps(list(ids)) + "\n")
        process.stdin.flush()
    if not (answer := process.stdout.readline()):
        raise SystemExit("OpenVINO ended without an answer; its message is above.")
    return int(answer)


def main(models: str, num_threads: str, num_tokens: str, kind: str) -> None:
    """Answer the requests on stdin."""
    import numpy
    import openvino as ov
    import openvino_genai as genai

    settings: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": int(num_threads), "INFERENCE_PRECISION_HINT": "f32",
    }  # fmt: skip
    given: Mapping[str, Any] = {
        "": {},
        "sps": {"draft_model": lambda: genai.draft_model(f"{models}/sps", "CPU", **settings)},
        "pld": {"prompt_lookup": lambda: True},
    }[kind]
    pipeline = genai.LLMPipeline(
        f"{models}/target", "CPU", **settings, **{name: make() for name, make in given.items()}
    )
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = int(num_tokens), True, False
    if kind:
        config.num_assistant_tokens = NUM_DRAFTED
    if kind == "pld":
        config.max_ngram_size = NGRAM
    for line in sys.stdin:
        ids = numpy.array([json.loads(line)], dtype=numpy.int64)
        found = pipeline.generate(ov.Tensor(ids), config)
        print(len(found.tokens[0]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
