"""Training of heads: the loss falls, a stopped run resumes, and the target does not change.

The training loop with its checkpoints, optimizers and attention is tested on a tiny model. Heads
are trained in bfloat16 only if its products are fast.
"""

import json
import platform
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.drafter import BuildContext
from specbench.engine.target import Target
from specbench.registry import get
from specbench.training.batches import Batch
from specbench.training.chain_attention import BLOCKS
from specbench.training.eagle3 import Eagle3Head
from specbench.training.head import Labels, TargetOutputs, agreement, ahead, decayed_sum, depth_loss
from specbench.training.loop import TrainingPlan
from specbench.training.medusa import MedusaHeads
from specbench.training.optimizers import Schedule, has_fast_bfloat16, optimizers_for
from specbench.training.recipe import HEADS, fit, new_head
from specbench.training.teacher import Teacher
from specbench.training.work_folder import locked_log
from tests.packaging.shell import python
from tests.support.architectures import config_of, random_of
from tests.support.paths import ROOT
from tests.training.head_models import OPTIONS, batches, micro_model, random_head, target_outputs

RETURNED_BYTES = """
import psutil
import torch

from specbench.training.loop import keep_memory

keep_memory()
tensor = torch.ones(2**25)
full_bytes = psutil.Process().memory_info().rss
del tensor
print(full_bytes - psutil.Process().memory_info().rss)
"""
"""A program that prints how much memory the system gets back from a freed tensor of 128 MiB."""


def trained(method: str, folder: Path, seed: int = 0, stop_at: int = 0) -> list[dict[str, Any]]:
    """The log of a short run, which an interrupt ends after this step."""

    def stop(line: dict[str, Any]) -> None:
        if line["step"] == stop_at:
            raise KeyboardInterrupt

    model, options = micro_model(), replace(OPTIONS, seed=seed)
    with torch.no_grad():
        model.lm_head.weight.mul_(10)  # confident predictions, so that heads can learn
    head = new_head(method, model, options, batches())
    source = replace(batches(), rows=batches().rows[:4])  # read four times
    held_out = replace(batches(seed=1), rows=batches(seed=1).rows[:3])
    with locked_log(folder / "work") as log, suppress(KeyboardInterrupt):
        plan = TrainingPlan(
            Schedule(options.num_steps, 2), log, log_every=1, save_every=4, on_log=stop
        )
        fit(head, model, options, source, held_out, plan, folder / "out")
    return [json.loads(line) for line in (folder / "work" / "log.jsonl").read_text().splitlines()]


@pytest.fixture(params=HEADS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator of Linux is told")
def test_memory_of_freed_tensors_is_kept() -> None:
    # The program has its own process: memory that earlier tests freed would count here too.
    assert int(python(RETURNED_BYTES, ROOT)) < 2**26


def test_a_resumed_training_equals_an_uninterrupted_one(method: str, tmp_path: Path) -> None:
    losses = [line["loss"] for line in trained(method, tmp_path / "whole")]
    assert sum(losses[-2:]) < sum(losses[:2])
    begun = trained(method, tmp_path / "parts", stop_at=5)
    assert len(begun) == 5 and begun[3]["held_out"]
    context = BuildContext(Target(micro_model()), tmp_path / "parts" / "out")
    get(method).build(get(method).options(), context)  # it has a head already
    # The starting weights differ, and those of the checkpoint count.
    resumed = trained(method, tmp_path / "parts", seed=99)
    assert [line["loss"] for line in resumed] == losses


def test_only_parameters_of_the_head_have_an_optimizer(method: str) -> None:
    model = micro_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    head = random_head(method, model)
    batch = batches()[0]
    head.loss(batch, target_outputs(head, model, batch.ids)).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert all(parameter.grad is not None for parameter in head.parameters())
    parts = optimizers_for(head, head.vocab_weights(), 0.02, 0.002)
    muon, adam = ([id(p) for p in part.param_groups[0]["params"]] for part in parts)
    assert sorted(muon + adam) == sorted(id(parameter) for parameter in head.parameters())
    assert {id(weight) for weight in head.vocab_weights()} <= set(adam)


def test_depth_d_at_position_t_reads_no_token_after_t_plus_d(method: str) -> None:
    model = micro_model()
    head = random_head(method, model)
    ids = batches()[0].ids[:1, :24]
    at = 10
    with torch.no_grad():
        by_depth = head.draft_logits(ids, target_outputs(head, model, ids))
        for depth, logits in enumerate(by_depth, start=1):
            changed = ids.clone()
            changed[:, at + depth + 1 :] = 7
            again = head.draft_logits(changed, target_outputs(head, model, changed))[depth - 1]
            assert torch.allclose(again[:, : at + 1], logits[:, : at + 1], atol=1e-4)


def test_losses_count_the_weight_of_the_predicted_token() -> None:
    logits = torch.randn(1, 4, 8)
    batch = Batch(torch.tensor([[1, 5, 6, 2]]), torch.tensor([[0.0, 0.0, 0.0, 1.0]]), 4)
    teacher = torch.full((1, 4, 8), -1e4)
    teacher[..., 2] = 0.0
    # Token 3 is predicted by depth 1 of position 1, and by depth 2 of position 0.
    for depth, at in ((1, 1), (2, 0)):
        for targets in (ahead(batch.ids, 1), teacher):
            loss = depth_loss(logits, Labels(targets, batch.weights), depth)
            assert torch.allclose(loss, -logits[0, at].log_softmax(-1)[2])


def test_each_depth_counts_four_fifths_of_the_depth_before_it() -> None:
    losses = torch.tensor([1.0, 10.0, 100.0]).unbind()
    assert decayed_sum(losses, start=1).item() == pytest.approx(0.8 + 6.4 + 51.2)
    assert decayed_sum(losses, start=0).item() == pytest.approx(1 + 8 + 64)


def test_eagle3_leaves_out_tokens_outside_its_vocabulary() -> None:
    model = micro_model()
    head = Eagle3Head(model, torch.tensor([5, 7]), num_unrolled=2)
    batch = Batch(torch.tensor([[1, 8, 9, 6, 5, 7]]), torch.ones(1, 6), 6)
    outputs = target_outputs(head, model, batch.ids)
    best = torch.full_like(outputs.best, 9)  # the target always chooses one it cannot draft
    assert head.loss(batch, replace(outputs, best=best)) == 0
    best[:, 2] = 7  # except once
    assert head.loss(batch, replace(outputs, best=best)) > 0
    other = Eagle3Head(model, torch.tensor([6, 9]), num_unrolled=2)
    head.load_state_dict(other.state_dict())  # as `--start` does
    assert torch.allclose(
        head.labels(batch, outputs).targets, outputs.logits[..., [6, 9]], atol=1e-5
    )


def test_a_target_that_is_its_own_head_agrees_with_itself() -> None:
    model = micro_model()
    batch = batches()[0]

    class Oracle(MedusaHeads):
        def draft_logits(self, ids: torch.Tensor, target: TargetOutputs) -> list[torch.Tensor]:
            return [ahead(target.logits, depth) for depth in (1, 2)]

    oracle = Oracle(model)
    text = [(batch, target_outputs(oracle, model, batch.ids))] * 2
    assert agreement(oracle, text) == pytest.approx({"guess_1": 1.0, "guess_2": 1.0, "mat": 3.0})


def test_the_schedule_warms_up_peaks_and_decays() -> None:
    schedule = Schedule(num_steps=100, warmup=10, final=0.1)
    factors = [schedule.factor(step) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == factors[10] == pytest.approx(1.0)
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[100] == pytest.approx(0.1)


def test_attention_in_blocks_equals_causal_attention() -> None:
    model = micro_model(num_hidden_layers=1, num_key_value_heads=4)
    ids = torch.randint(5, 2000, (2, 300))
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        model.set_attn_implementation(BLOCKS)
        assert torch.allclose(model(ids, use_cache=False).logits, expected, atol=1e-5)


@torch.no_grad()
def test_a_target_with_windows_keeps_its_own_attention() -> None:
    model = random_of(config_of("mistral", num_key_value_heads=4))
    ids = torch.randint(3, 50, (2, 20))
    expected = model(ids, use_cache=False).logits
    assert torch.allclose(Teacher(model)(ids).logits, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("machine", "is_new", "device", "is_fast"),
    [
        ("x86_64", True, "cpu", True),
        ("x86_64", False, "cpu", False),
        ("AMD64", False, "cpu", False),
        ("x86_64", False, "cuda:0", True),
        ("aarch64", False, "cpu", True),
    ],
)
def test_a_cpu_without_instructions_for_bfloat16_trains_in_float32(
    monkeypatch: pytest.MonkeyPatch, machine: str, is_new: bool, device: str, is_fast: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: is_new, raising=False)
    assert has_fast_bfloat16(device) is is_fast
