"""The published layouts that a trained head is written in: file name, config and key names."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from specbench.errors import UserError, unknown_name
from specbench.training.head import Head

SAFEAILAB, SPECULATORS = "safeailab", "speculators"
FORMATS = (SAFEAILAB, SPECULATORS)

_HEAD_FIELDS = ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids")
_SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


class HeadFiles(NamedTuple):
    """The content of a head's folder."""

    config: Mapping[str, object]
    tensors: Mapping[str, Tensor]
    file_name: str


def check_format(name: str, method: str) -> None:
    """Refuse a layout that there is not, or not for this method. Raises UserError."""
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    if name == SPECULATORS and method != "eagle3":
        raise UserError(
            f"speculators has no format for the heads of {method}.",
            f"Write them with --format {SAFEAILAB}, or train eagle3.",
        )


def head_files(head: Head, layout: str, target: str) -> HeadFiles:
    """The files of a head in a layout; `target` is the folder or Hub id of its target.

    `safeailab` is what each method's official code writes. `speculators` is that of the
    package speculators 0.9, checked against its models/eagle3/config.py.
    """
    fields, tensors = head.config(), dict(head.tensors())
    if fields.get("draft_vocab_size") == fields.get("vocab_size"):  # vLLM then refuses maps
        for name in ("d2t", "t2d"):
            tensors.pop(name, None)
    if layout == SAFEAILAB:
        return HeadFiles(fields, tensors, head.file_name)
    renamed = {key.replace("midlayer.", "layers.0.", 1): value for key, value in tensors.items()}
    return HeadFiles(_speculators_config(fields, target), renamed, "model.safetensors")


def _speculators_config(fields: Mapping[str, object], target: str) -> dict[str, Any]:
    left_out = {"architectures", "torch_dtype", *_HEAD_FIELDS}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": target, "architectures": []},
        },
        **{name: fields[name] for name in _HEAD_FIELDS},
        **dict.fromkeys(_SWITCHES, False),
        "tie_word_embeddings": False,
        "torch_dtype": fields["torch_dtype"],
        "transformer_layer_config": {
            name: value for name, value in fields.items() if name not in left_out
        },
    }
