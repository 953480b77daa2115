"""The training loop with its checkpoints, optimizers and attention, on a micro model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.training.batches import Batch
from specbench.training.layer import register_attention
from specbench.training.loop import Loss, Plan, train
from specbench.training.optimizers import Schedule, optimizers_for, orthogonalize
from tests.training.head_models import batches


def micro_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        vocab_size=2048,
    )
    return LlamaForCausalLM(config)


def vocab_weights(model: LlamaForCausalLM) -> list[torch.Tensor]:
    return [model.get_input_embeddings().weight, model.get_output_embeddings().weight]


def micro_run(folder: Path, num_steps: int, stop_at: int | None = None) -> list[dict[str, object]]:
    """The log of a training run with the schedule of a whole one, interrupted at `stop_at`."""
    model = micro_model()
    plan = Plan(Schedule(num_steps, warmup=2), folder, log_every=1, save_every=2)
    loss_of = interrupted(loss_of_model(model), stop_at) if stop_at else loss_of_model(model)
    optimizers = optimizers_for(model, vocab_weights(model), matrix_lr=0.02, other_lr=0.02)
    try:
        train(model, loss_of, batches(), optimizers, plan, lambda: {"constant": 1.0})
    except KeyboardInterrupt:
        assert stop_at is not None
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def loss_of_model(model: LlamaForCausalLM) -> Loss:
    def loss_of(batch: Batch) -> torch.Tensor:
        logits = model(batch.ids, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch.ids[:, 1:].flatten())

    return loss_of


def interrupted(loss_of: Loss, stop_at: int) -> Callable[[Batch], torch.Tensor]:
    calls = iter(range(stop_at))

    def loss(batch: Batch) -> torch.Tensor:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return loss_of(batch)

    return loss


def test_an_interrupted_run_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    whole = micro_run(tmp_path / "whole", num_steps=8)
    micro_run(tmp_path / "parts", num_steps=8, stop_at=5)
    resumed = micro_run(tmp_path / "parts", num_steps=8)
    assert [line["step"] for line in resumed] == list(range(1, 9))
    assert [line["loss"] for line in resumed] == [line["loss"] for line in whole]
    assert [line["tokens"] for line in resumed] == [line["tokens"] for line in whole]


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    assert micro_run(tmp_path, num_steps=3) == micro_run(tmp_path, num_steps=3)


def test_the_schedule_warms_up_peaks_and_decays() -> None:
    schedule = Schedule(num_steps=100, warmup=10, final=0.1)
    factors = [schedule.factor(step) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == factors[10] == pytest.approx(1.0)
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[100] == pytest.approx(0.1)


@pytest.mark.parametrize("shape", [(24, 64), (64, 24), (32, 32)])
def test_muon_makes_updates_nearly_orthogonal(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert values.min() > 0.4 and values.max() < 1.4


def test_attention_in_blocks_is_plain_causal_attention() -> None:
    model = micro_model().eval()
    ids = torch.randint(5, 2000, (2, 300))
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        model.set_attn_implementation(register_attention())
        assert torch.allclose(model(ids, use_cache=False).logits, expected, atol=1e-5)
