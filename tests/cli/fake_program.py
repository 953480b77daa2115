"""specbench without torch, models and plots: `python fake_program.py run ...`."""

from __future__ import annotations

import os
import time

from specbench.cli import main, run
from specbench.machine import environment
from specbench.measure import plan
from specbench.measure.methods import BASELINE
from specbench.measure.spec import RunSpec
from specbench.registry import default_entries
from specbench.report import build
from specbench.types import Completion, Request, Step
from tests.support.backend import Answer, FakeSetup
from tests.support.headers import make_header

PAUSE_S = float(os.environ.get("FAKE_PAUSE_S", "0"))


def answering(place: int) -> Answer:
    """A fake method. Methods that are later in the table are faster and accept more."""

    def answer(request: Request) -> Completion:
        time.sleep(PAUSE_S)
        num_tokens = request.max_new_tokens - request.seed % 5
        length = 1 + place
        full, rest = divmod(num_tokens - 1, length)
        lengths = [length] * full + [rest] * (rest > 0)
        steps = tuple(Step(length, accept_length) for accept_length in lengths)
        noise = 1 + request.seed % 997 / 1661  # hardly ever the same in two passes
        seconds = 0.01 * num_tokens * noise / (1 + place / 4)
        return Completion(tuple(range(num_tokens)), "budget", steps, 0.01, seconds)

    return answer


def make_setup(spec: RunSpec, *, is_offline: bool) -> FakeSetup:
    default = [entry.name for entry in default_entries() if entry.origin == "specbench"]
    labels = dict.fromkeys((BASELINE, *(spec.methods or default)))
    return FakeSetup({label: answering(place) for place, label in enumerate(labels)})


if __name__ == "__main__":
    build.make_plots = lambda report: ()  # type: ignore[attr-defined]
    plan.make_setup = make_setup  # type: ignore[assignment]
    run.quiet_libraries = lambda: None  # type: ignore[attr-defined]
    environment.capture = lambda: make_header().environment
    main()
