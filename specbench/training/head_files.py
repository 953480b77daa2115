"""Read and write the files of a trained head, in the format of its method's official code."""

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor

from specbench.errors import NonFiniteError, reading
from specbench.log.files import folder_errors, write_whole
from specbench.training.head import NON_FINITE_HINT, Head

_VOCABULARY_MAPS = ("d2t", "t2d")


def write_head(head: Head, folder: Path) -> None:
    """Write config.json and the weights in float16, as the method's official code does.

    Each file is replaced in one move.

    Raises:
        NonFiniteError: a weight does not fit into float16. No file has changed.
        RunFolderError: a file cannot be written. That file has not changed.
    """
    fields = head.config()
    vocab_size = fields.get("vocab_size")
    has_whole_vocab = fields.get("draft_vocab_size", vocab_size) == vocab_size
    tensors: dict[str, Tensor] = {}
    for name, tensor in head.state_dict().items():
        if has_whole_vocab and name in _VOCABULARY_MAPS:  # vLLM refuses maps of whole vocabularies
            continue
        half = tensor.half() if tensor.is_floating_point() else tensor
        tensors[name] = half.cpu().contiguous()
        if not tensors[name].isfinite().all():
            message = f"The head's {name} has values that do not fit into float16."
            raise NonFiniteError(message, NON_FINITE_HINT)
    with folder_errors(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "config.json", (json.dumps(fields, indent=2) + "\n").encode())
    write_saved(folder / head.file_name, tensors)


def read_head(head: Head, folder: Path) -> None:
    """Give a head the weights in the folder of another trained head.

    The head keeps its draft vocabulary. It also keeps the rows of `lm_head` for tokens that the
    other head does not draft.

    Raises:
        CheckpointError: the file is missing or damaged, or its head has other shapes.
    """
    path = folder / head.file_name
    tensors = head.state_dict()
    hint = "Give the folder of a head of this method and model."
    with reading(path, "There is no head to start from", hint):
        stored = torch.load(path, map_location="cpu", weights_only=True)
        if "t2d" in stored:
            was_drafted = stored.pop("t2d")
            is_drafted = tensors["t2d"].cpu()
            del stored["d2t"]
            if "lm_head.weight" in tensors:
                stored["lm_head.weight"] = _with_stored_rows(
                    tensors["lm_head.weight"].cpu(),
                    is_drafted,
                    stored["lm_head.weight"],
                    was_drafted,
                )
        for name, tensor in stored.items():
            if tensor.shape != tensors[name].shape:
                shapes = f"{[*tensor.shape]}, not {[*tensors[name].shape]}"
                raise ValueError(f"{name} is {shapes}")
        head.load_state_dict({**tensors, **stored})


def _with_stored_rows(
    rows: Tensor, is_drafted: Tensor, stored_rows: Tensor, was_drafted: Tensor
) -> Tensor:
    """Return the rows [draft vocab, hidden] of a vocabulary, with stored rows for shared tokens.

    `is_drafted` and `was_drafted` [vocab] are true for tokens in the new and in the stored draft
    vocabulary.
    """
    is_shared = was_drafted & is_drafted
    shared_rows = stored_rows.to(rows.dtype)[is_shared[was_drafted]]
    rows[is_shared[is_drafted]] = shared_rows
    return rows


def write_saved(path: Path, state: Mapping[str, object]) -> None:
    """Save a state in torch's format, replacing the file in one move.

    Raises:
        RunFolderError: the file cannot be written. It has not changed.
    """
    content = BytesIO()
    torch.save(state, content)
    with folder_errors(path, "--out"):
        write_whole(path, content.getvalue())
