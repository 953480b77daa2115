"""The dry run: each row of the suite, smaller and on a CPU, to check that it writes its figures."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from benchmarks.gpu.row import Row
from benchmarks.gpu.rows import EXPLAINED, HALF_OF_MIXTRAL, MODELS, REAL_MODEL, SELECTED, TASK

SMALL_MIXTRAL = "benchmarks/gpu/shapes/small-mixtral"
"""The smallest mixture of experts that holds tiny."""
SELECTED_TESTS = "equal_a_sort or a_capture_refuses"
"""Tests that take seconds without a GPU, as an expression of pytest's -k."""
NUM_NEW = 4
"""Tokens of an answer."""
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
"""Usual time of a row: its limit is three times as long, enough for a busy machine."""
LAYERS_OF = REAL_MODEL
"""The model whose layers are timed: tiny has no shape."""


def small(row: Row) -> Row:
    """The row made so small that it takes seconds without a GPU. It has to be complete."""
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
        temperatures=row.spec.temperatures[:1],  # the audit of a second one, T = 1, takes minutes
    )  # fmt: skip
    return replace(row, spec=spec, usual_s=USUAL_S, is_required=True)
