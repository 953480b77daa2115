"""The official EAGLE code behind a pipe: reads JSON requests and writes JSON answers, one per line.

    python benchmarks/official_eagle/worker.py CHECKOUT

`official.py` starts it, under an interpreter that may have another transformers. It imports torch,
transformers and the checkout's unmodified `eagle`, and nothing of specbench. Other output goes to
stderr. Every answer is `{"ok": ...}` or `{"error": TEXT}`.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def main(checkout: Path) -> int:
    """Answer once at the start, then answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print would garble the answers
    worker = Worker(checkout)

    def answer(function: Callable[..., Any], arguments: dict[str, Any]) -> bool:
        try:
            reply = {"ok": function(**arguments)}
        except Exception as error:
            traceback.print_exc()
            lines = str(error).strip().splitlines()
            reply = {"error": f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"}
        print(json.dumps(reply), file=answers, flush=True)
        return "ok" in reply

    calls: dict[str, Callable[..., Any]] = {
        "load": worker.load,
        "generate": worker.generate,
        "accepted": worker.accepted,
    }
    if not answer(worker.start, {}):
        return 1
    for line in sys.stdin:
        request = json.loads(line)
        answer(calls[request.pop("call")], request)
    return 0


class Worker:
    """A model of the official code on its device; runs one request at a time."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self._class: Any
        self._model: Any

    def start(self) -> dict[str, str]:
        """Import the official code; returns its interpreter's and packages' versions."""
        import torch
        import transformers

        sys.path[0] = str(self._checkout)  # instead of this file's own folder
        from eagle.model.ea_model import EaModel

        self._class = EaModel
        return {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    def load(
        self, target: str, head: str, device: str, dtype: str, num_threads: int, **tree: int
    ) -> None:
        """Load EAGLE-2 from two folders; `tree` holds its options by their official names."""
        import torch

        torch.set_num_threads(num_threads)
        self._model = self._class.from_pretrained(
            use_eagle3=False, base_model_path=target, ea_model_path=head, threshold=1.0, **tree,
            torch_dtype=getattr(torch, dtype), device_map={"": device},
        )  # fmt: skip
        self._model.eval()

    def generate(self, method: str, prompt_ids: list[int], max_new_tokens: int) -> dict[str, Any]:
        """Complete a prompt greedily; seconds from prompt to last token, device synchronised."""
        model = self._model
        complete = {"eagle2": model.eagenerate, "vanilla": model.naivegenerate}[method]
        input_ids = self._input(prompt_ids)
        self._wait()
        began = time.perf_counter()
        output = complete(input_ids, temperature=0.0, max_new_tokens=max_new_tokens)
        self._wait()
        seconds = time.perf_counter() - began
        token_ids = output[0, len(prompt_ids) :].tolist()
        return {"token_ids": token_ids, "seconds": seconds}

    def accepted(self, prompt_ids: list[int], max_new_tokens: int) -> list[int]:
        """Tokens added by each step of EAGLE-2, from the generator that yields after each."""
        return list(self._growth(prompt_ids, max_new_tokens))

    def _growth(self, prompt_ids: list[int], max_new_tokens: int) -> Iterator[int]:
        length = len(prompt_ids)
        steps = self._model.ea_generate(
            self._input(prompt_ids), temperature=0.0, max_new_tokens=max_new_tokens
        )
        for output in steps:
            yield output.shape[1] - length
            length = output.shape[1]

    def _input(self, prompt_ids: list[int]) -> Any:
        import torch

        return torch.tensor([prompt_ids], device=self._model.base_model.device)

    def _wait(self) -> None:
        import torch

        device = self._model.base_model.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
