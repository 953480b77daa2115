"""Every kernel with the arguments of a decoding step of a 13B model in bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specbench.engine.kernels import triton_attention as attention
from specbench.engine.kernels import triton_growth as growth
from specbench.engine.kernels import triton_kernels as kernels
from specbench.engine.kernels import triton_topk as triton_best
from specbench.engine.kernels.triton_experts import project_experts
from specbench.engine.kernels.triton_ops import (
    CHUNK,
    EXPERT_BLOCK,
    EXPERT_ROWS,
    ROW_BLOCK,
    ROWS,
    TILES,
)
from specbench.engine.kernels.triton_plan import CACHE_ROWS, MOST_SPLITS, RESIDENT

T, F, I = "*bf16", "*fp32", "i32"  # noqa: E741 - Triton's names of argument types


@dataclass(frozen=True)
class Case:
    """A kernel to compile, and the resources that it may need."""

    what: str  # its purpose
    kernel: Any
    arguments: Mapping[str, Any]  # the type or value of each argument
    options: Mapping[str, int] = field(default_factory=dict)
    resident: int = 1  # programs that a processor must hold at once
    spilled: int = 0  # bytes of stack that a compiler may use


PROJECT = {
    **dict.fromkeys(("x", "weight", "bias", "norm", "out"), T),
    "num_out": I, "size": I, "eps": "fp32", "HAS_BIAS": False, "IS_GELU": False,
}  # fmt: skip
FLAVOURS = {
    "normed product": {"HAS_NORM": True, "IS_ADDED": False, "IS_GATED": False},
    "product and sum": {"HAS_NORM": False, "IS_ADDED": True, "IS_GATED": False},
    "normed, gated product": {"HAS_NORM": True, "IS_ADDED": False, "IS_GATED": True},
}
ROW_CASES = [
    Case(
        what, kernels.project_row,
        {**PROJECT, **flavour, "ROWS": ROWS[flavour["IS_GATED"]], "BLOCK": ROW_BLOCK},
    )
    for what, flavour in FLAVOURS.items()
]  # fmt: skip
ATTEND = {
    **dict.fromkeys(("queries", "rows", "bias"), T),
    **dict.fromkeys(("parts", "tops", "totals"), F),
    **dict.fromkeys(("queries_stride", "rows_stride", "kv_width"), I),
    **dict.fromkeys(("first", "begins"), "*i64"), **dict.fromkeys(("scale", "soft_cap"), "fp32"),
    "HAS_WINDOW": False, "HAS_CAP": False, "DIM": 128, "BLOCK": CACHE_ROWS,
}  # fmt: skip
ATTENTION_CASES = [
    *(
        Case(
            f"attention of {what}", attention.attend_split,
            {**ATTEND, **more, "n": n, "num_more": n, "group": group, "ROWS": rows}, TILES[rows],
            RESIDENT[rows],
        )
        for what, rows, n, group, more in (
            ("a row", 16, 1, 1, {}), ("a level", 16, I, 1, {}), ("a small tree", 32, I, 1, {}),
            ("a tree", 64, I, 1, {}), ("a tree, grouped heads", 64, I, I, {}),
            ("a tree, window", 64, I, I, {"HAS_WINDOW": True, "DIM": 64}),
            ("a tree, window and cap", 64, I, I, {"HAS_WINDOW": True, "HAS_CAP": True, "DIM": 64}),
        )
    ),
    *(
        Case(
            f"attention of {what}", attention.attend_split,
            {**ATTEND, **more, "n": I, "num_more": I, "group": I, "ROWS": rows}, TILES[rows],
            spilled=16,  # Triton 3.9 keeps registers below 128 for a second program
        )
        for rows in (16, 32)
        for what, more in (
            (f"{rows} queries, window of 128", {"HAS_WINDOW": True}),
            (f"{rows} queries, window and cap", {"HAS_WINDOW": True, "HAS_CAP": True}),
            (f"{rows} queries, heads of 256", {"DIM": 256}),
            (f"{rows} queries, window, heads of 256", {"DIM": 256, "HAS_WINDOW": True}),
            (f"{rows} queries, float32", dict.fromkeys(("queries", "rows", "bias"), F)),
        )
    ),
    Case(
        "attention of 64 queries, heads of 256", attention.attend_split,
        {**ATTEND, "DIM": 256, "n": I, "num_more": I, "group": I, "ROWS": 64}, TILES[64],
    ),
    *(
        Case(
            f"attention's parts, {splits} splits" + ", sinks" * has_sinks, attention.join_splits,
            {
                **dict.fromkeys(("parts", "tops", "totals"), F), "out": T, "sinks": T,
                **dict.fromkeys(("num_queries", "num_splits", "num_heads"), I),
                "HAS_SINKS": has_sinks, "DIM": 128, "SPLITS": splits,
            },
            {"num_warps": max(splits * 128 // 2048, 1)},
        )
        for splits in (8, MOST_SPLITS)
        for has_sinks in (False, True)
    ),
]  # fmt: skip
OTHER_CASES = [
    *(
        Case(
            name, kernels.norm_rows,
            {
                "x": T, "weight": weight, "out": T, "size": I, "x_stride": I, "eps": "fp32",
                "IS_ADDED": is_added, "BLOCK": 8192,
            },
            {"num_warps": 16},
        )
        for name, weight, is_added in (("norm", T, False), ("norm and sum", F, True))
    ),
    *(
        Case(
            "gelu gate" if is_gelu else "gate", kernels.gate_rows,
            {"both": T, "out": T, "inner": I, "IS_GELU": is_gelu, "BLOCK": 1024},
        )
        for is_gelu in (False, True)
    ),
    *(
        Case(
            name, kernels.rotate_and_write_kv,
            {
                **dict.fromkeys(("qkv", "rows", "cos_sin", "norm"), T), "kept": "*i64",
                **dict.fromkeys(("qkv_stride", "rows_stride", "cos_sin_stride"), I),
                "num_queries": I, "num_kv": I, "eps": "fp32", "HAS_NORM": has_norm,
                "DIM": 128, "BLOCK": 128,
            },
            {"num_warps": 1},
        )
        for name, has_norm in (("rotary embedding", False), ("normed rotary embedding", True))
    ),
    *(
        Case(
            name, project_experts,
            {
                **dict.fromkeys(("x", "weight", "bias", "shares", "out"), T), "ids": "*i64",
                **dict.fromkeys(("num_out", "size", "x_group"), I),
                **dict.fromkeys(("alpha", "limit"), "fp32"), "IS_GATED": is_gated,
                "IS_CLAMPED": is_clamped, "HAS_BIAS": is_clamped, "HAS_SHARES": not is_gated,
                "ROWS": EXPERT_ROWS, "BLOCK": EXPERT_BLOCK,
            },
        )
        for name, is_gated, is_clamped in (
            ("gated experts", True, False), ("clamped experts", True, True),
            ("experts and shares", False, False),
        )
    ),
    Case(
        "candidates of a draft", triton_best.topk_of_few,
        {"values": "*fp64", "best": "*fp64", "places": "*i64", "size": I, "K": 60, "BLOCK": 1024},
    ),
    Case(
        "a chunk of logits", triton_best.topk_of_chunk,
        {
            "logits": T, **dict.fromkeys(("best", "tops", "totals"), F), "ids": "*i32",
            "vocab_size": I, "stride": I, "K": 10, "BLOCK": CHUNK,
        },
    ),
    *(
        Case(
            "a row of logits" + ", scored" * is_scored, triton_best.topk_of_row,
            {
                **dict.fromkeys(("best", "tops", "totals"), F), "ids": "*i32", "above": "*fp64",
                "scores": "*fp64" if is_scored else F,
                **dict.fromkeys(("token_ids", "chosen"), "*i64"), "num_chunks": I,
                "HAS_ABOVE": is_scored, "HAS_IDS": is_scored, "K": 10, "CHUNKS": 32, "BLOCK": 512,
            },
        )
        for is_scored in (False, True)
    ),
    Case(
        "nodes to expand", growth.choose_beam,
        {
            **dict.fromkeys(("scores", "penalty", "above"), "*fp64"),
            **dict.fromkeys(("tokens", "nodes", "rows", "kept"), "*i64"),
            **dict.fromkeys(("mask", "sees_itself", "beam_mask"), T),
            **dict.fromkeys(("size", "width"), I), "K": 10, "PLACES": 16, "BLOCK": 128,
            "COLUMNS": 128,
        },
    ),
    *(
        Case(
            "normed inputs of a draft" if has_norms else "inputs of a draft", growth.pair_rows,
            {
                **dict.fromkeys(
                    ("table", "hidden", "token_norm", "hidden_norm", "pairs", "residual"), T
                ),
                **dict.fromkeys(("tokens", "rows"), "*i64"), **dict.fromkeys(("size", "stride"), I),
                **dict.fromkeys(("token_eps", "hidden_eps"), "fp32"), "HAS_ROWS": True,
                "HAS_NORMS": has_norms, "IS_NORMED": False, "BLOCK": 8192,
            },
            {"num_warps": 16},
        )
        for has_norms in (False, True)
    ),
]  # fmt: skip
CASES = [*ROW_CASES, *ATTENTION_CASES, *OTHER_CASES]
