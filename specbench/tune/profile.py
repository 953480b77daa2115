"""Make an acceptance profile from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.measure.progress import Lines
from specbench.settings.json_files import check_free
from specbench.tune.engine_plan import Say, make_engine_plan
from specbench.tune.profile_file import PROFILE_FILE, Profile
from specbench.tune.recording import recorded_plan


def profile(
    model: str = "tiny",
    methods: str | Sequence[str] = (),
    *,
    output: str | Path | None = None,
    offline: bool = False,
    say: Say | None = None,
    **values: Any,
) -> Profile:
    """Record what methods draft at every position of vanilla's answers.

    `profile("tiny", "eagle2:depth=5,top_k=8,pld", tasks="gsm8k", output="profiles/mine")`

    The options of a method are the largest ones that the profile can be replayed with.

    Args:
        model: a known model, a folder or a Hub id.
        methods: methods with options, in one text or several; if empty, a plain run's methods.
        output: the folder of `profile.json` and `profile.npz`; by default nothing is written.
        offline: use no network.
        say: receives a line per finished answer and message.
        values: further fields of `specbench.log.spec.SpecValues`, such as `tasks`, `limit`,
            `max_new_tokens`, `dtype`, `threads` and `temperatures`. Above temperature 0 there
            are `repeats` answers to each prompt, by default 3.

    Raises:
        UserError: an unknown name or wrong value, several temperatures, a method without a
            profile, or a profile that is too large.
    """
    engine_plan = make_engine_plan(model, methods, values, offline=offline)
    check_free(output, PROFILE_FILE, "profile")
    progress = Lines(say or (lambda text: None))
    recorded = recorded_plan(engine_plan, progress, is_named=bool(methods))
    if output is not None:
        recorded.write(Path(output))
    return recorded
