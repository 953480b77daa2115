"""A stand-in generates tiny's tokens, step by step, in every shape.

Stand-ins on disk: equal to those built in memory, and written once.
"""

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.api import load
from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.errors import UserError
from specbench.models.cards import find_model
from specbench.models.chat import load_codec
from specbench.registry import get
from specbench.types import Request, Sampling, Shape
from specbench.zoo import TINY
from specbench.zoo.stand_in.files import is_written, write_head, write_model
from specbench.zoo.stand_in.models import spread_layers
from specbench.zoo.stand_in.plan import StandIn, plan_stand_in
from tests.zoo.stand_in_shapes import DRAFT, SHAPE

METHODS = ("vanilla", "sps", "pld", "lookahead", "medusa", "hydra", "eagle", "eagle2", "eagle3")
CPU = torch.device("cpu")
NUM_WORDS = 2048
WRITTEN = plan_stand_in("a test", replace(SHAPE, num_layers=12))
REQUESTS = (
    "Explain the good and bad sides of speaking in public.",
    "Hannah earns $4 an hour by mowing lawns. Hannah works 4 hours a day for 2 days. How much?",
)


@pytest.fixture(scope="module")
def tiny() -> Target:
    return load_target(TINY / "target", dtype=torch.float32, device=CPU)


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    codec = load_codec(TINY / "target", find_model("tiny"), "auto")
    return tuple(codec.render([{"role": "user", "content": text}]) for text in REQUESTS)


@cache
def made() -> tuple[StandIn, Target]:
    """A stand-in, and its target."""
    stand_in = plan_stand_in("a test", SHAPE, DRAFT)
    return stand_in, load_target(stand_in.target, dtype=torch.float32, device=CPU)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_tinys_steps_and_tokens(name: str, tiny: Target) -> None:
    method, (stand_in, big) = get(name), made()
    kind = method.weights
    weights: Any = (TINY / kind, stand_in.drafters[kind]) if kind else (None, None)
    small, large = (
        method.build(method.options(), BuildContext(target, source))
        for target, source in zip((tiny, big), weights, strict=True)
    )
    # EAGLE samples with one number for each token of the vocabulary, so a larger one shifts them.
    temperatures = (0.0, 0.0 if name == "eagle" else 1.0)
    for seed, (prompt, temperature) in enumerate(zip(prompts(), temperatures, strict=True)):
        request = Request(prompt, 24, Sampling(temperature), frozenset({2}), seed)
        ours, theirs = decode(big, large, request), decode(tiny, small, request)
        assert ours.token_ids == theirs.token_ids
        assert ours.accept_lengths == theirs.accept_lengths


@pytest.mark.parametrize(
    ("changes", "dtype", "bound"),
    [
        ({}, torch.float32, 1e-4),
        ({}, torch.bfloat16, 2.0),
        ({}, torch.float16, 0.25),
        ({"architecture": "qwen2"}, torch.float32, 1e-4),
        ({"architecture": "mistral"}, torch.float32, 1e-4),
        ({"num_layers": 12, "own_head_dim": 64}, torch.float32, 1e-4),
        ({"num_heads": 12, "hidden_size": 204}, torch.float32, 1e-4),
        ({"own_head_dim": 192, "vocab_size": NUM_WORDS}, torch.float32, 1e-4),
    ],
    ids=str,
)
def test_logits_are_tinys_in_every_shape_and_far_below_for_added_words(
    tiny: Target, changes: dict[str, Any], dtype: torch.dtype, bound: float
) -> None:
    """In half precision they differ by rounding alone."""
    shape = replace(SHAPE, **changes)
    target = load_target(plan_stand_in("x", shape).target, dtype=dtype, device=CPU)
    with torch.inference_mode():
        ours, theirs = (one.prefill(prompts()[0]).logits[0].float() for one in (target, tiny))
    assert ours.shape == (shape.vocab_size,)
    assert (ours[:NUM_WORDS] - theirs).abs().max() < bound
    added = ours[NUM_WORDS:]
    least = -65504 if dtype == torch.float32 else -1e6
    assert all((added > least) & (added < -1000))


@pytest.mark.slow
def test_added_weights_are_noise_and_not_zeros() -> None:
    wide = Shape(12, 768, 2048, 6, 6, vocab_size=3000, context=2048)
    stand_in = plan_stand_in("x", wide, wide)
    for name, source in {"target": stand_in.target, **stand_in.drafters}.items():
        num_zeros = num_numbers = 0
        for key, tensor in source.tensors(CPU, torch.float32):
            if key not in ("model.embed_tokens.weight", "d2t"):  # of which a step reads one row
                num_zeros += int((tensor == 0).sum())
                num_numbers += tensor.numel()
        assert num_numbers > 3e6, name
        assert num_zeros <= 193 / 768 * num_numbers, name  # a stripe as wide as tiny


def test_the_same_seed_makes_the_same_weights() -> None:
    def first(seed: int) -> torch.Tensor:
        source = plan_stand_in("x", SHAPE, seed=seed).drafters["eagle"]
        return next(tensor for _, tensor in source.tensors(CPU, torch.float32))

    assert torch.equal(first(0), first(0))
    assert not torch.equal(first(0), first(1))


def test_captured_layers_equal_tinys() -> None:
    for num_layers in range(12, 81):
        taps = ((2, 2), (6, num_layers // 2), (9, num_layers - 3))
        places = spread_layers(12, num_layers, taps)
        for small, big in (*taps, (12, num_layers)):
            assert [place for place in places[:big] if place is not None] == [*range(small)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write(folder)
    return folder


def write(folder: Path, dtype: torch.dtype = torch.float32) -> None:
    target, head = folder / "target", folder / "eagle"
    write_model(WRITTEN.target, target, dtype=dtype, device=CPU)
    write_head(WRITTEN.drafters["eagle"], head, dtype=dtype, device=CPU)


def test_a_written_stand_in_has_tinys_tokens_and_steps(folder: Path) -> None:
    question = "Write three suggestions for cooking at home."
    method = f"eagle2:weights={folder / 'eagle'}"
    written = load(str(folder / "target"), method, device="cpu", dtype="float32")
    said = written.generate(question, max_new_tokens=24)
    tiny = load("tiny", "eagle2", device="cpu").generate(question, max_new_tokens=24)
    assert (said.text, said.prompt_ids) == (tiny.text, tiny.prompt_ids)
    assert said.completion.accept_lengths == tiny.completion.accept_lengths


def test_a_written_config_has_the_names_that_transformers_4_reads(folder: Path) -> None:
    for part in ("target", "eagle"):
        config = json.loads((folder / part / "config.json").read_text())
        assert config["architectures"] == ["LlamaForCausalLM"]
        assert (config["torch_dtype"], config["rope_theta"]) == ("float32", 10000.0)
        assert "rope_parameters" not in config
    tokenizer = json.loads((folder / "target" / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "extra_special_tokens" not in tokenizer


def test_complete_folders_are_kept_and_others_rewritten(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder whose writing was interrupted is of neither number format."""

    def full_disk(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    def formats() -> list[torch.dtype]:
        both = (torch.float32, torch.bfloat16)
        return [one for one in both if is_written(WRITTEN.target, target, dtype=one, device=CPU)]

    target = Path(shutil.copytree(folder, tmp_path, dirs_exist_ok=True)) / "target"
    shard = target / "model.layers.0.safetensors"
    shard.write_bytes(b"")
    write(tmp_path)
    assert shard.stat().st_size == 0 and formats() == [torch.float32]
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr("specbench.zoo.stand_in.files.save_file", full_disk)
        write(tmp_path, torch.bfloat16)
    assert formats() == []
    write(tmp_path, torch.bfloat16)
    assert shard.stat().st_size > 0 and formats() == [torch.bfloat16]


def test_a_folder_with_somebody_elses_files_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "target" / "model-00001.safetensors"
    theirs.parent.mkdir()
    theirs.write_text("weights of theirs")
    with pytest.raises(UserError, match="holds files that are not a stand-in's"):
        write(tmp_path)
    assert theirs.read_text() == "weights of theirs"
