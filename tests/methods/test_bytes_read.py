"""`bytes_read` of each drafter, compared with the weights that its products use."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from specbench.engine.decode import decode
from specbench.engine.drafter import State
from specbench.engine.layers.ops import Ops
from specbench.engine.layers.weights import weight_bytes
from specbench.engine.model_parts import decoder, pass_bytes
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
from specbench.registry import names
from specbench.types import Request
from tests.support.architectures import config_of, random_of
from tests.support.models import prompts, random_llama, random_target
from tests.support.weights import build

WEIGHTS: Mapping[Callable[..., Tensor], Sequence[int]] = {
    linear: (1, 2), Tensor.addmm_: (2,), torch.bmm: (1,),
}  # fmt: skip
"""For each product, the arguments that are weights."""


class Reader(TorchFunctionMode):
    """A mode that sums the bytes of the weights that products use."""

    num_bytes = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = [args[i] for i in WEIGHTS.get(func, ()) if i < len(args)]
        self.num_bytes += sum(tensor.nbytes for tensor in given if tensor is not None)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _attention_reads_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = Ops.attend

    def unseen(*args: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            return attend(*args)

    monkeypatch.setattr(Ops, "attend", unseen)


def said_and_read(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: object
) -> tuple[float, list[int]]:
    """The bytes that a method reports, and the bytes that each draft of a completion reads."""
    target = random_target(layers=8, vocab_size=500, hidden_size=64)
    drafter = build(name, target, folder, **options)
    read: list[int] = []
    propose = drafter.propose

    def counted(state: State) -> DraftTree:
        with Reader() as reader:
            tree = propose(state)
        read.append(reader.num_bytes)
        return tree

    monkeypatch.setattr(drafter, "propose", counted)
    sizes = decode(target, drafter, Request(prompts()[1], 30)).num_nodes
    said = sum(drafter.bytes_read(num_nodes) for num_nodes in sizes) / len(sizes)
    return said, read


@pytest.mark.parametrize("name", names())
def test_a_draft_reads_the_bytes_that_its_method_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, read = said_and_read(name, tmp_path, monkeypatch)
    mean = sum(read) / len(read)
    assert mean <= said <= 1.01 * mean  # the weights of norms are in no product


@pytest.mark.parametrize("other", ["eagle2", "eagle3"])
def test_sam_reads_the_other_methods_head_only_if_it_drafts(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, read = said_and_read("sam", tmp_path, monkeypatch, other=other, threshold=2)
    copied, drafted = min(read), max(read)
    assert copied < 0.7 * drafted
    assert 0.98 * sum(read) / len(read) <= said <= 1.01 * sum(read) / len(read)


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_forward_reads_every_weight_except_an_untied_embedding(is_tied: bool) -> None:
    target = Target(random_llama(layers=3, vocab_size=400, tie_word_embeddings=is_tied))
    with Reader() as reader, torch.inference_mode():
        target.forward(DraftTree.chain(torch.tensor([5])))
    said = pass_bytes(target.model)
    assert reader.num_bytes <= said <= 1.01 * reader.num_bytes
    held = weight_bytes(target.model)
    table = weight_bytes(target.model.get_input_embeddings())
    assert held - said == (0 if is_tied else table)


def test_the_parts_for_images_are_not_read() -> None:
    """For a model with images, too, the embedding is the head."""
    model = random_of(config_of("gemma3"))
    assert weight_bytes(model) > pass_bytes(model) == weight_bytes(decoder(model))
