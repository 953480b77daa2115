"""Training of heads: the loss falls, a stopped run resumes, and the target does not change.

The training loop with its checkpoints, optimizers and attention is tested on a tiny model. Heads
are trained in bfloat16 only if its products are fast.
"""

import copy
import json
import platform
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specbench.engine.drafter import BuildContext
from specbench.engine.target import Target
from specbench.registry import get
from specbench.training.batches import Batch
from specbench.training.chain_attention import BLOCKS
from specbench.training.eagle3 import Eagle3Head
from specbench.training.head import Labels, TargetOutputs, agreement, ahead, decayed_sum, depth_loss
from specbench.training.loop import LogLine, TrainingPlan
from specbench.training.medusa import MedusaHeads
from specbench.training.optimizers import Schedule, has_fast_bfloat16, optimizers_for
from specbench.training.recipe import HEADS, fit, new_head
from specbench.training.teacher import Teacher
from specbench.training.work_folder import locked_log
from tests.packaging.shell import python
from tests.support.architectures import config_of, random_of
from tests.support.paths import ROOT
from tests.training.head_models import OPTIONS, batches, micro_model, random_head, target_outputs

PRINT_RETURNED_BYTES = """
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


def trained(method: str, folder: Path, seed: int = 0, stop_at: int = 0) -> list[LogLine]:
    """The log of a short run, which an interrupt ends after step `stop_at`."""

    def stop(line: LogLine) -> None:
        if line["step"] == stop_at:
            raise KeyboardInterrupt

    model = micro_model()
    options = replace(OPTIONS, seed=seed)
    with torch.no_grad():
        model.lm_head.weight.mul_(10)  # confident predictions, so that heads can learn
    text = batches()
    head = new_head(method, model, options, text)
    held_out = batches(seed=1)
    with locked_log(folder / "work") as log, suppress(KeyboardInterrupt):
        fit(
            head=head,
            model=model,
            options=options,
            batches=replace(text, rows=text.rows[:4]),  # read four times
            held_out=replace(held_out, rows=held_out.rows[:3]),
            plan=TrainingPlan(
                schedule=Schedule(options.num_steps, warmup=2),
                log=log,
                log_every=1,
                save_every=4,
                on_log=stop,
            ),
            out=folder / "out",
        )
    log_file = folder / "work" / "log.jsonl"
    return [json.loads(line) for line in log_file.read_text().splitlines()]


def losses_of(lines: list[LogLine]) -> list[float]:
    return [line["loss"] for line in lines]


@pytest.fixture(params=HEADS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this setting")
def test_memory_of_freed_tensors_is_kept() -> None:
    # The program has its own process: memory that earlier tests freed would count here too.
    assert int(python(PRINT_RETURNED_BYTES, ROOT)) < 2**26


def test_the_loss_falls(method: str, tmp_path: Path) -> None:
    losses = losses_of(trained(method, tmp_path))
    assert sum(losses[-2:]) < sum(losses[:2])


def test_an_interrupted_training_leaves_a_head_that_can_be_used(
    method: str, tmp_path: Path
) -> None:
    lines = trained(method, tmp_path, stop_at=5)
    assert len(lines) == 5
    assert lines[3]["held_out"]
    context = BuildContext(Target(micro_model()), tmp_path / "out")
    get(method).build(get(method).options(), context)


def test_a_resumed_training_equals_an_uninterrupted_one(method: str, tmp_path: Path) -> None:
    whole = trained(method, tmp_path / "whole")
    assert len(trained(method, tmp_path / "parts", stop_at=5)) == 5
    # The starting weights differ, and those of the checkpoint count.
    assert losses_of(trained(method, tmp_path / "parts", seed=99)) == losses_of(whole)


def test_a_loss_has_gradients_for_the_head_and_none_for_the_target(method: str) -> None:
    model = micro_model()
    before = copy.deepcopy(model.state_dict())
    head = random_head(method, model)
    batch = batches()[0]
    outputs = target_outputs(head, model, batch.ids)
    head.loss(batch, outputs).backward()
    assert all(parameter.grad is not None for parameter in head.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in after)


def test_each_parameter_of_the_head_has_one_optimizer(method: str) -> None:
    head = random_head(method, micro_model())
    vocab_weights = head.vocab_weights()
    muon, adam = optimizers_for(head, vocab_weights, matrix_lr=0.02, other_lr=0.002)
    muon_ids = [id(parameter) for parameter in muon.param_groups[0]["params"]]
    adam_ids = [id(parameter) for parameter in adam.param_groups[0]["params"]]
    head_ids = [id(parameter) for parameter in head.parameters()]
    assert sorted(muon_ids + adam_ids) == sorted(head_ids)
    assert {id(weight) for weight in vocab_weights} <= set(adam_ids)


@torch.no_grad()
def test_depth_d_at_position_t_reads_no_token_after_t_plus_d(method: str) -> None:
    model = micro_model()
    head = random_head(method, model)
    ids = batches()[0].ids[:1, :24]  # [1, 24]
    num_positions = 11  # the last of these positions is t = 10
    outputs = target_outputs(head, model, ids)
    by_depth = head.draft_logits(ids, outputs)
    for depth, logits in enumerate(by_depth, start=1):
        changed_ids = ids.clone()
        changed_ids[:, num_positions + depth :] = 7  # the tokens after t + d
        changed_outputs = target_outputs(head, model, changed_ids)
        changed_logits = head.draft_logits(changed_ids, changed_outputs)[depth - 1]
        expected = logits[:, :num_positions]  # [1, positions, vocab]
        assert torch.allclose(changed_logits[:, :num_positions], expected, atol=1e-4)


@pytest.mark.parametrize(("depth", "position"), [(1, 1), (2, 0)])
def test_losses_count_the_weight_of_the_predicted_token(depth: int, position: int) -> None:
    """The last token is predicted by depth 1 of position 1, and by depth 2 of position 0."""
    ids = torch.tensor([[1, 5, 6, 2]])  # [rows, length]
    weights = torch.tensor([[0.0, 0.0, 0.0, 1.0]])  # only the last token counts
    logits = torch.randn(1, 4, 8)  # [rows, length, vocab]
    teacher_logits = torch.full((1, 4, 8), -1e4)
    teacher_logits[..., 2] = 0.0
    log_probs = logits[0, position].log_softmax(-1)  # [vocab]
    for targets in (ahead(ids, 1), teacher_logits):
        labels = Labels(targets, weights)
        assert torch.allclose(depth_loss(logits, labels, depth), -log_probs[2])


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, 1 + 8 + 64),
        (1, 0.8 + 6.4 + 51.2),
    ],
)
def test_each_depth_counts_four_fifths_of_the_depth_before_it(start: int, expected: float) -> None:
    losses = torch.tensor([1.0, 10.0, 100.0]).unbind()
    assert decayed_sum(losses, start).item() == pytest.approx(expected)


SIX_TOKENS = Batch(
    ids=torch.tensor([[1, 8, 9, 6, 5, 7]]),
    weights=torch.ones(1, 6),
    num_tokens=6,
)


def test_eagle3_leaves_out_tokens_outside_its_vocabulary() -> None:
    model = micro_model()
    head = Eagle3Head(model, torch.tensor([5, 7]), num_unrolled=2)
    outputs = target_outputs(head, model, SIX_TOKENS.ids)
    best = torch.full_like(outputs.best, 9)  # the target always chooses one it cannot draft
    assert head.loss(SIX_TOKENS, replace(outputs, best=best)) == 0
    best[:, 2] = 7  # except once
    assert head.loss(SIX_TOKENS, replace(outputs, best=best)) > 0


def test_loaded_weights_of_eagle3_bring_their_vocabulary() -> None:
    model = micro_model()
    head = Eagle3Head(model, torch.tensor([5, 7]), num_unrolled=2)
    other = Eagle3Head(model, torch.tensor([6, 9]), num_unrolled=2)
    head.load_state_dict(other.state_dict())  # as `--start` does
    outputs = target_outputs(head, model, SIX_TOKENS.ids)
    labels = head.labels(SIX_TOKENS, outputs)
    assert torch.allclose(labels.targets, outputs.logits[..., [6, 9]], atol=1e-5)


def test_a_target_that_is_its_own_head_agrees_with_itself() -> None:
    model = micro_model()
    batch = batches()[0]

    class Oracle(MedusaHeads):
        def draft_logits(self, ids: torch.Tensor, target: TargetOutputs) -> list[torch.Tensor]:
            return [ahead(target.logits, depth) for depth in (1, 2)]

    oracle = Oracle(model)
    outputs = target_outputs(oracle, model, batch.ids)
    rates = agreement(oracle, [(batch, outputs), (batch, outputs)])
    assert rates == pytest.approx({"guess_1": 1.0, "guess_2": 1.0, "mat": 3.0})


def test_the_schedule_warms_up_peaks_and_decays() -> None:
    schedule = Schedule(num_steps=100, warmup=10, final=0.1)
    factors = [schedule.factor(step) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == factors[10] == pytest.approx(1.0)
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[100] == pytest.approx(0.1)


@torch.no_grad()
def test_attention_in_blocks_equals_causal_attention() -> None:
    model = micro_model(num_hidden_layers=1, num_key_value_heads=4)
    ids = torch.randint(5, 2000, (2, 300))
    expected = model(ids, use_cache=False).logits
    model.set_attn_implementation(BLOCKS)
    in_blocks = model(ids, use_cache=False).logits
    assert torch.allclose(in_blocks, expected, atol=1e-5)


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
