"""The dry run: small rows on a CPU, which check that each row of the suite writes its figures."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from benchmarks.gpu.row import Row
from benchmarks.gpu.rows import EXPLAINED, HALF_OF_MIXTRAL, MODELS, REAL_MODEL, SELECTED, TASK

SMALL_MIXTRAL = "benchmarks/gpu/shapes/small-mixtral"
"""The smallest mixture of experts that can hold tiny."""
SELECTED_TESTS = "equal_a_sort or a_capture_refuses"
"""Tests that take seconds without a GPU, as an expression of pytest's -k."""
NUM_NEW = 4
"""Number of tokens of an answer."""
WORDS = {
    **dict.fromkeys((*MODELS, REAL_MODEL), "tiny"),
    "cuda": "cpu",
    "bfloat16": "float32",
    SELECTED: SELECTED_TESTS,
    "8192": "64",
    "32768": "96",
}
"""Words of commands, and the words that replace them."""
ADDED_WORDS = {
    "kernels": ("--capability", "90", "--most", "4"),
    "layers": ("--rows", "1"),
    "products": ("--rows", "2", "--cached", "16"),
}
"""Words that commands have at their end, by the kind of row."""
USUAL_S = 200.0
"""Usual seconds of a row. The limit is three times as long, which is enough on a busy machine."""
LAYERS_OF = REAL_MODEL
"""The model whose layers are timed, because tiny's card has no shape."""


def small(row: Row) -> Row:
    """A required copy of the row, small enough to take only seconds without a GPU."""
    if row.spec is None:
        words = {**WORDS, **dict.fromkeys(MODELS, LAYERS_OF)} if row.kind == "layers" else WORDS
        command = (*(words.get(word, word) for word in row.command), *ADDED_WORDS.get(row.kind, ()))
        return replace(row, command=command, usual_s=USUAL_S, is_required=True)
    model, weights = "tiny", "hub"
    if row.spec.model == HALF_OF_MIXTRAL:
        model, weights = SMALL_MIXTRAL, "stand-in"
    spec = structs.replace(
        row.spec, model=model, weights=weights, device="cpu", dtype="float32", tasks=TASK,
        methods=row.spec.methods or EXPLAINED, limit=1, max_new_tokens=NUM_NEW,
        temperatures=row.spec.temperatures[:1],  # an audit at T = 1 takes minutes
    )  # fmt: skip
    return replace(row, spec=spec, usual_s=USUAL_S, is_required=True)
