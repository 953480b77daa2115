"""The bundled prompts: held out, in the published format, and regenerable."""

from itertools import islice

import pytest

from tools.zoo.__main__ import PROMPTS
from tools.zoo.held_out import bundled_requests, prompt_lines
from tools.zoo.language_models import SPS_DISTILLED, SPS_TEXT, TARGET
from tools.zoo.text import FAMILIES, stream


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bundled_prompts_regenerate_byte_for_byte(family: str) -> None:
    assert (PROMPTS / f"{family}.jsonl").read_bytes() == prompt_lines(family).encode()


@pytest.mark.parametrize("seed", [TARGET.seed, SPS_TEXT.seed, SPS_DISTILLED.seed])
def test_no_bundled_prompt_is_in_the_training_stream(seed: int) -> None:
    requests = bundled_requests()
    for dialogue in islice(stream(seed, held_out=requests), 5000):
        assert dialogue.turns[0].user not in requests
