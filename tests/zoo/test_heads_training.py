"""Heads in training: the loss falls, a stopped run goes on, the target stays as it is."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from specbench.zoo.batches import Batch, BatchSource
from specbench.zoo.heads.head import Seen, agreement, ahead, soft_loss, text_loss
from specbench.zoo.heads.medusa import MedusaHeads
from specbench.zoo.heads.recipe import METHODS, new_head, optimizers_for, run
from specbench.zoo.optim import Schedule
from specbench.zoo.train import Plan
from tests.zoo.head_models import RECIPE, batches, micro_model, random_head, seen_by

torch.set_num_threads(1)


class Stopped:
    """Batches that end with an interrupt."""

    def __init__(self, source: BatchSource, stop_at: int) -> None:
        self._source, self._stop_at = source, stop_at

    def __getitem__(self, index: int) -> Batch:
        if index == self._stop_at:
            raise KeyboardInterrupt
        return self._source[index]


class Repeated:
    """One batch again and again."""

    def __getitem__(self, index: int) -> Batch:
        return batches()[0]


def sharp_model() -> LlamaForCausalLM:
    """A micro target that is sure of what it says, so that there is something to learn."""
    model = micro_model()
    with torch.no_grad():
        model.lm_head.weight.mul_(10)
    return model


def trained(method: str, folder: Path, source: BatchSource) -> list[dict[str, object]]:
    """The log of a short run."""
    model = sharp_model()
    head = new_head(method, model, RECIPE, batches())
    work = folder / "work"
    schedule = Schedule(RECIPE.num_steps, warmup=2)
    plan = Plan(schedule, work, log_every=1, evaluate_every=4, save_every=2)
    held_out = {"text": batches(seed=1)[0]}
    try:
        run(head, model, RECIPE, source, held_out, plan, folder / "out")
    except KeyboardInterrupt:
        assert isinstance(source, Stopped)
    return [json.loads(line) for line in (work / "log.jsonl").read_text().splitlines()]


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Iterator[str]:
    torch.manual_seed(0)
    yield request.param


def test_a_few_steps_lower_the_loss(method: str, tmp_path: Path) -> None:
    log = trained(method, tmp_path, Repeated())
    losses = [float(str(line["loss"])) for line in log]
    assert losses[-1] < 0.98 * losses[0]


def test_a_stopped_run_goes_on_to_the_same_losses(method: str, tmp_path: Path) -> None:
    whole = trained(method, tmp_path / "whole", batches())
    torch.manual_seed(0)
    trained(method, tmp_path / "parts", Stopped(batches(), stop_at=5))
    torch.manual_seed(99)  # a new process draws other starting weights; the checkpoint wins
    resumed = trained(method, tmp_path / "parts", batches())
    assert [line["loss"] for line in resumed] == [line["loss"] for line in whole]


def test_the_head_is_written_before_the_run_ends(method: str, tmp_path: Path) -> None:
    log = trained(method, tmp_path, Stopped(batches(), stop_at=5))
    assert log[3]["held_out"]
    assert (tmp_path / "out" / "config.json").is_file()


def test_training_leaves_the_target_as_it_is(method: str) -> None:
    model = micro_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    head = random_head(method, model)
    batch = batches()[0]
    head.loss(batch, seen_by(head, model, batch.ids)).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_every_parameter_of_a_head_is_trained_by_one_optimizer(method: str) -> None:
    model = micro_model()
    head = random_head(method, model)
    batch = batches()[0]
    head.loss(batch, seen_by(head, model, batch.ids)).backward()
    assert all(parameter.grad is not None for parameter in head.parameters())
    parts = optimizers_for(head, RECIPE).parts
    ids = [id(p) for part in parts for group in part.param_groups for p in group["params"]]
    assert sorted(ids) == sorted(id(parameter) for parameter in head.parameters())


def test_new_medusa_and_hydra_heads_guess_what_the_target_says_next() -> None:
    model = micro_model()
    batch = batches()[0]
    for name in ("medusa", "hydra"):
        head = new_head(name, model, RECIPE, batches())
        seen = seen_by(head, model, batch.ids)
        with torch.no_grad():
            for module in head.modules():
                if isinstance(module, torch.nn.Linear) and module.bias is not None:
                    module.bias.zero_()
            for logits in head.guesses(batch.ids, seen):
                assert torch.allclose(logits, seen.logits, atol=1e-4)


def test_a_guess_that_sees_the_future_is_not_one(method: str) -> None:
    """Guesses at t of depth d depend on the tokens up to t + d at most."""
    model = micro_model()
    head = random_head(method, model)
    ids = batches()[0].ids[:1, :24]
    at = 10
    with torch.no_grad():
        guesses = head.guesses(ids, seen_by(head, model, ids))
        for depth, logits in enumerate(guesses, start=1):
            changed = ids.clone()
            changed[:, at + depth + 1 :] = 7
            again = head.guesses(changed, seen_by(head, model, changed))[depth - 1]
            assert torch.allclose(again[:, : at + 1], logits[:, : at + 1], atol=1e-4)


def test_values_ahead_are_shifted_and_end_in_zeros() -> None:
    values = torch.tensor([[1, 2, 3, 4]])
    assert ahead(values, 1).tolist() == [[2, 3, 4, 0]]
    assert ahead(values, 3).tolist() == [[4, 0, 0, 0]]


def test_losses_count_the_weight_of_the_guessed_token() -> None:
    logits = torch.randn(1, 4, 8)
    batch = Batch(torch.tensor([[1, 5, 6, 2]]), torch.tensor([[0.0, 0.0, 0.0, 1.0]]), 4)
    # Token 3 is guessed two ahead of position 1, and by depth 2 of position 0.
    assert torch.allclose(text_loss(logits, batch, 1), -logits[0, 1].log_softmax(-1)[2])
    assert torch.allclose(text_loss(logits, batch, 2), -logits[0, 0].log_softmax(-1)[2])
    teacher = torch.full((1, 4, 8), -1e4)
    teacher[..., 2] = 0.0
    weights = ahead(batch.weights, 2)
    assert torch.allclose(soft_loss(logits, teacher, weights), text_loss(logits, batch, 1))


def test_a_target_that_is_its_own_head_agrees_with_itself() -> None:
    model = micro_model()
    batch = batches()[0]

    class Oracle(MedusaHeads):
        def guesses(self, ids: torch.Tensor, seen: Seen) -> list[torch.Tensor]:
            return [ahead(seen.logits, depth) for depth in (1, 2)]

    oracle = Oracle(model)
    rates = agreement(oracle, batch, seen_by(oracle, model, batch.ids))
    assert rates == pytest.approx({"guess_1": 1.0, "guess_2": 1.0})
