"""The compiled operations have torch's results, and a row's bits do not depend on other rows."""

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import silu

from specbench.engine.execution import Execution
from specbench.engine.kernels import native_build
from specbench.engine.kernels.native_build import BuildError
from specbench.engine.kernels.native_ops import NativeOps, native_ops
from specbench.engine.kernels.pick_ops import pick_native_ops, unsupported_reason
from specbench.engine.layers.operands import CacheRows, CacheSlots, CacheSpan, Heads, Norm, TreeMask
from specbench.engine.layers.ops import TORCH
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.zoo import TINY
from tests.engine.test_target import load_in
from tests.support.devices import CPU

try:
    CC = " ".join(native_build.compiler())
except BuildError as reason:
    pytest.skip(str(reason), allow_module_level=True)

KINDS = [(torch.float32, CC), (torch.bfloat16, CC)]
for name, flag in {"amx_bf16": "-mno-amx-bf16", "avx512f": "-mno-avx512f"}.items():
    if name in native_build._processor():  # cover all ways to multiply
        KINDS.append((torch.bfloat16, f"{CC} {flag}"))
HEADS = Heads(num_kv=2, group=3, dim=64)
KV_SHAPES = [(2, 64)] * 2


@pytest.fixture(scope="module", params=KINDS, ids=str)
def ops(request: pytest.FixtureRequest, folder: Path) -> NativeOps:
    dtype, compiler = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", compiler)
        return native_ops(dtype, folder)


def test_results_equal_torchs(ops: NativeOps) -> None:
    assert unsupported_reason(ops, CPU, ops._dtype) is None


def test_the_check_finds_a_wrong_operation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: NativeOps, x: torch.Tensor, *args: object, **named: object) -> torch.Tensor:
        return TORCH.project(x, *args, **named) * 1.01  # type: ignore[arg-type]

    monkeypatch.setattr(NativeOps, "project", wrong)
    picked = pick_native_ops(torch.float32, folder)
    assert picked.name == "torch"
    assert picked.reason is not None
    assert "is off by" in picked.reason


@pytest.mark.parametrize("size", [1, 5, 16, 37, 300])
@pytest.mark.parametrize("num_out", [1, 6, 8, 77])
def test_a_row_does_not_depend_on_the_rows_beside_it(
    ops: NativeOps, size: int, num_out: int
) -> None:
    torch.manual_seed(0)
    dtype = ops._dtype
    x = torch.randn(23, size, dtype=dtype)
    weight = torch.randn(2 * num_out, size, dtype=dtype)
    bias = torch.randn(2 * num_out, dtype=dtype)
    norm = Norm(torch.randn(size, dtype=dtype), 1e-5)
    products = ops.project(x, weight, bias, norm=norm)
    gated = ops.gated(x, weight, bias, norm, silu)
    for i in range(23):
        row = x[i : i + 1]
        assert torch.equal(ops.project(row, weight, bias, norm=norm)[0], products[i])
        assert torch.equal(ops.gated(row, weight, bias, norm, silu)[0], gated[i])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(
    ops: NativeOps, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    torch.manual_seed(0)
    x = torch.randn(9, 320, dtype=ops._dtype)
    weight = torch.randn(701, 320, dtype=ops._dtype)
    expected = ops.project(x, weight)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(ops.project(x, weight), expected)


@pytest.mark.parametrize("committed", [0, 1, 3, 50])
def test_attention_to_a_path_equals_attention_in_the_tree(ops: NativeOps, committed: int) -> None:
    """Siblings between a node and its ancestors do not change a node's bits."""
    torch.manual_seed(0)
    dtype = ops._dtype
    start = torch.tensor(committed)
    layout = TreeLayout.from_parents([0, 0, 0, 1, 1, 2, 4], CPU)
    rows = torch.randn(80, 2 * HEADS.kv_width, dtype=dtype)
    cached = CacheRows.of(rows, *KV_SHAPES)
    queries = torch.randn(7, HEADS.query_width, dtype=dtype)
    mask = TreeMask(start, layout.bias(dtype), CacheSpan(committed))
    whole = ops.attend(queries, cached, mask, HEADS)
    path = [0, 1, 4, 6]
    zero = torch.zeros(1, 1, dtype=dtype)
    moved = cached.all.clone()
    moved[committed : committed + 4] = cached.all[torch.tensor(path) + committed]
    alone = CacheRows.of(moved, *KV_SHAPES)
    for depth, node in enumerate(path):
        chain = TreeMask(start + depth, zero, CacheSpan(committed + depth))
        query = queries[node : node + 1]
        alone_output = ops.attend(query, alone, chain, HEADS)
        assert torch.equal(alone_output[0], whole[node])


def test_logits_over_a_tree_equal_vanillas_bit_by_bit(folder: Path) -> None:
    execution = Execution(native_ops(torch.float32, folder))
    target = load_in(TINY / "target", execution=execution)
    prompt = list(range(5, 40))
    layout = TreeLayout.from_parents([0, 0, 0, 1, 1, 3, 5, 2], CPU)
    tree = DraftTree(torch.arange(50, 58), layout, layout.num_nodes)
    target.prefill(prompt, num_new=20)
    whole = target.forward(tree).logits.clone()
    target.prefill(prompt, num_new=20)
    path = [0, 1, 3, 5, 6]
    for node in path:
        step = target.forward(DraftTree.chain(tree.tokens[node : node + 1]))
        assert torch.equal(step.logits[0], whole[node])
        target.commit([0])
    prefill = target.prefill([*prompt, *tree.tokens[path].tolist()])
    assert torch.equal(prefill.logits[0], whole[6])


def test_products_without_code_are_left_to_torch(folder: Path) -> None:
    ops = native_ops(torch.float32, folder)
    weight = torch.randn(5, 8)
    half = torch.randn(3, 8).half()
    half_weight = weight.half()
    assert torch.equal(ops.project(half, half_weight), TORCH.project(half, half_weight))
    many_rows = torch.randn(300, 8)
    transposed = torch.randn(8, 3).T
    for x in (many_rows, transposed):
        assert torch.equal(ops.project(x, weight), TORCH.project(x, weight))


def test_heads_of_a_size_without_code_are_left_to_torch(folder: Path) -> None:
    ops = native_ops(torch.float32, folder)
    heads = Heads(1, 1, 6)
    query = torch.ones(1, 6)
    cached = CacheRows.of(torch.randn(9, 12), *[(1, 6)] * 2)
    mask = TreeMask(torch.tensor(4), torch.zeros(1, 1), CacheSpan(4))
    native = ops.attend(query, cached, mask, heads)
    assert torch.equal(native, TORCH.attend(query, cached, mask, heads))


def test_all_rows_may_share_the_embeddings_of_one_position(ops: NativeOps) -> None:
    torch.manual_seed(0)
    dtype = ops._dtype
    tolerance = 1e-6 if dtype == torch.float32 else 0.04
    qkv = torch.randn(4, HEADS.query_width + 2 * HEADS.kv_width, dtype=dtype)
    embeddings = torch.randn(1, 2, 1, 2, 32, dtype=dtype)
    slots = CacheSlots(torch.tensor([7, 2, 5, 0]), embeddings)
    results = []
    for operations in (ops, TORCH):
        rotated = qkv.clone()
        rows = torch.zeros(9, 2 * HEADS.kv_width, dtype=dtype)
        cached = CacheRows.of(rows, *KV_SHAPES)
        operations.write_kv(rotated, cached, slots, HEADS)
        results.append((rotated, cached.all))
    for native, right in zip(*results, strict=True):
        assert (native - right).abs().max() <= tolerance


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "compiler"), KINDS)
def test_no_shape_reaches_beyond_its_memory(
    dtype: torch.dtype, compiler: str, tmp_path: Path
) -> None:
    """Products and attention, under the address and undefined-behaviour sanitizers."""
    source = Path(__file__).with_name("sanitized.c")
    program = tmp_path / "sanitized"
    options = "-g -O1 -std=gnu11 -fno-math-errno -fopenmp -march=native"
    sanitizers = "-fsanitize=address,undefined -fno-sanitize-recover=all"
    is_half = int(dtype == torch.bfloat16)
    command = [
        *f"{compiler} {options} {sanitizers}".split(),
        f"-DHALF={is_half}",
        f"-I{native_build.SOURCE.parent}",
        str(source),
        "-lm",
    ]
    run = partial(subprocess.run, capture_output=True, text=True)
    built = run([*command, "-o", str(program)])
    if built.returncode and "asan" in built.stderr:
        pytest.skip("the compiler brings no sanitizers")
    assert built.returncode == 0, built.stderr
    done = run([program], env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    assert done.returncode == 0, done.stdout + done.stderr
