"""The training loop, its batches, optimizers and losses, on a micro model."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.zoo.attention import register
from specbench.zoo.batches import Batch, Batches, pack
from specbench.zoo.losses import distillation_loss, text_loss
from specbench.zoo.models import load_model, write_model
from specbench.zoo.optim import Optimizers, Schedule, optimizers_for, orthogonalised
from specbench.zoo.text import stream
from specbench.zoo.tokenizer import BOS_ID, EOS_ID, train_tokenizer
from specbench.zoo.train import Plan, train

TOKENIZER = train_tokenizer(seed=3, num_dialogues=300)


def micro_model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        vocab_size=2048,
    )
    return LlamaForCausalLM(config)


def micro_batches(seed: int = 0) -> Batches:
    return Batches(TOKENIZER.backend_tokenizer, seed, 2, 256, 0.3, frozenset())


def micro_run(folder: Path, num_steps: int, stop_at: int | None = None) -> list[dict[str, object]]:
    """Train for some steps, the schedule being that of the whole run; gives the log."""
    model = micro_model()
    schedule = Schedule(num_steps, warmup=2)
    plan = Plan(schedule, folder, log_every=1, evaluate_every=2, save_every=2)
    loss_of = loss_of_model(model)
    if stop_at is not None:
        loss_of = interrupted(loss_of, stop_at)
    optimizers = optimizers_for(model, 0.02, 0.004)
    try:
        train(model, loss_of, micro_batches(), optimizers, plan, lambda: {"constant": 1.0})
    except KeyboardInterrupt:
        assert stop_at is not None
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def loss_of_model(model: LlamaForCausalLM) -> Callable[[Batch], torch.Tensor]:
    return lambda batch: text_loss(model(batch.ids, use_cache=False).logits, batch)


def interrupted(
    loss_of: Callable[[Batch], torch.Tensor], stop_at: int
) -> Callable[[Batch], torch.Tensor]:
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


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    log = micro_run(tmp_path, num_steps=12)
    assert float(str(log[-1]["loss"])) < float(str(log[0]["loss"])) - 0.5
    assert log[-1]["held_out"] == {"constant": 1.0}


def test_a_batch_depends_on_the_seed_and_its_index_alone() -> None:
    first, again, other = micro_batches()[3], micro_batches()[3], micro_batches(seed=1)[3]
    assert torch.equal(first.ids, again.ids)
    assert not torch.equal(first.ids, other.ids)
    assert not torch.equal(first.ids, micro_batches()[4].ids)


def test_rows_hold_whole_chats_and_are_nearly_full() -> None:
    batch = replace(micro_batches(), num_rows=4, length=512)[0]
    assert batch.num_tokens > 0.95 * batch.ids.numel()
    for ids, weights in zip(batch.ids, batch.weights, strict=True):
        starts = (ids == BOS_ID).nonzero().flatten().tolist()
        assert starts[0] == 0 and weights[starts].tolist() == [0.0] * len(starts)
        assert all(ids[start - 1] == EOS_ID for start in starts[1:])


def test_answers_weigh_one_and_requests_less() -> None:
    dialogue = next(stream(0))
    batch = pack(TOKENIZER.backend_tokenizer, [dialogue], request_weight=0.3)
    answer = TOKENIZER(dialogue.turns[-1].assistant, add_special_tokens=False).input_ids
    weights = batch.weights[0].tolist()
    assert weights[0] == 0.0
    assert weights[-len(answer) - 1 :] == [1.0] * (len(answer) + 1)
    assert weights[1] == pytest.approx(0.3)


def test_the_text_loss_counts_weighted_tokens_only() -> None:
    logits = torch.randn(1, 4, 8)
    ids = torch.tensor([[1, 5, 6, 2]])
    batch = Batch(ids, torch.tensor([[0.0, 0.0, 1.0, 0.0]]), 4)
    expected = -logits[0, 1].log_softmax(-1)[6]
    assert torch.allclose(text_loss(logits, batch), expected)


def test_distilling_a_model_from_itself_costs_nothing() -> None:
    logits, other = torch.randn(2, 1, 4, 8).unbind(0)
    batch = Batch(torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4), 4)
    assert distillation_loss(logits, logits + 3.0, batch).abs() < 1e-6
    assert distillation_loss(other, logits, batch) > 0.01


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
    values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
    assert values.min() > 0.4 and values.max() < 1.4


def test_every_parameter_has_one_optimizer() -> None:
    model = micro_model()
    optimizers: Optimizers = optimizers_for(model, 0.02, 0.004)
    muon, adam = ([id(p) for p in part.param_groups[0]["params"]] for part in optimizers.parts)
    assert sorted(muon + adam) == sorted(id(p) for p in model.parameters())
    assert len(muon) == 7
    assert id(model.lm_head.weight) in adam


def test_blocked_attention_is_plain_causal_attention() -> None:
    model = micro_model().eval()
    ids = torch.randint(5, 2000, (2, 300))
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        model.set_attn_implementation(register())
        assert torch.allclose(model(ids, use_cache=False).logits, expected, atol=1e-5)


def test_a_written_model_loads_with_its_tokenizer(tmp_path: Path) -> None:
    model = micro_model()
    write_model(model.state_dict(), model.config, TOKENIZER, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert torch.allclose(loaded.lm_head.weight, model.lm_head.weight, atol=1e-3)
    assert (tmp_path / "model" / "tokenizer.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
