"""The training loop with its checkpoints, optimizers and attention, on a micro model."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from specbench.log.files import LineFile
from specbench.training.batches import Batch
from specbench.training.layer import register_attention
from specbench.training.loop import Plan, Schedule, optimizers_for, orthogonalize, train
from tests.training.head_models import batches, micro_model


def vocab_weights(model: LlamaForCausalLM) -> list[torch.Tensor]:
    return [model.get_input_embeddings().weight, model.get_output_embeddings().weight]


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    model, file = micro_model(num_hidden_layers=1), LineFile(tmp_path / "log.jsonl")
    plan = Plan(Schedule(3, warmup=2), file, log_every=1, save_every=2)
    optimizers = optimizers_for(model, vocab_weights(model), matrix_lr=0.02, other_lr=0.02)

    def loss_of(batch: Batch) -> torch.Tensor:
        logits = model(batch.ids, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch.ids[:, 1:].flatten())

    train(model, loss_of, batches(), optimizers, plan, lambda: {"constant": 1.0})
    log = (tmp_path / "log.jsonl").read_text()
    assert json.loads(log.splitlines()[-1])["held_out"] == {"constant": 1.0}

    def fail(batch: Batch) -> torch.Tensor:
        raise AssertionError("trained again")

    train(model, fail, batches(), optimizers, plan, lambda: {"constant": 1.0})
    assert (tmp_path / "log.jsonl").read_text() == log


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
    model = micro_model(num_hidden_layers=1, num_key_value_heads=4)
    ids = torch.randint(5, 2000, (2, 300))
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        model.set_attn_implementation(register_attention())
        assert torch.allclose(model(ids, use_cache=False).logits, expected, atol=1e-5)
