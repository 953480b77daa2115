"""Tests of the compiled operations: torch's results, and bits that do not depend on other rows."""

import os
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import silu

from specbench.engine.execution import Execution
from specbench.engine.kernels import native_build
from specbench.engine.kernels.native_build import BuildError, load_library, user_folder
from specbench.engine.kernels.native_ops import NativeOps, native_ops
from specbench.engine.kernels.pick_ops import pick_native_ops, unsupported_reason
from specbench.engine.layers.operands import CacheRows, CacheSlots, CacheSpan, Heads, Norm, TreeMask
from specbench.engine.layers.ops import TORCH
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.zoo import TINY
from tests.engine.test_target import load_in

try:
    CC = " ".join(native_build.compiler())
except BuildError as reason:
    pytest.skip(str(reason), allow_module_level=True)

CPU = torch.device("cpu")
KINDS = [(torch.float32, CC), (torch.bfloat16, CC)]
for name, flag in {"amx_bf16": "-mno-amx-bf16", "avx512f": "-mno-avx512f"}.items():
    if name in native_build._processor():  # all ways to multiply
        KINDS.append((torch.bfloat16, f"{CC} {flag}"))
HEADS = Heads(num_kv=2, group=3, dim=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that keeps the libraries of this module's tests."""
    return tmp_path_factory.mktemp("native")


@pytest.fixture(scope="module", params=KINDS, ids=str)
def ops(request: pytest.FixtureRequest, folder: Path) -> NativeOps:
    dtype, compiler = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", compiler)
        return native_ops(dtype, folder)


def test_results_are_those_of_torch(ops: NativeOps) -> None:
    assert unsupported_reason(ops, CPU, ops._dtype) is None


def test_the_check_finds_a_wrong_operation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: NativeOps, x: torch.Tensor, *args: object, **named: object) -> torch.Tensor:
        return TORCH.project(x, *args, **named) * 1.01  # type: ignore[arg-type]

    monkeypatch.setattr(NativeOps, "project", wrong)
    picked = pick_native_ops(torch.float32, folder)
    assert picked.name == "torch" and "is off by" in (picked.reason or "")


@pytest.mark.parametrize("size", [1, 5, 16, 37, 300])
@pytest.mark.parametrize("num_out", [1, 6, 8, 77])
def test_a_row_does_not_depend_on_the_rows_beside_it(
    ops: NativeOps, size: int, num_out: int
) -> None:
    torch.manual_seed(0)
    sizes = (23, size), (2 * num_out, size), (2 * num_out,), (size,)
    x, weight, bias, norm = (torch.randn(shape, dtype=ops._dtype) for shape in sizes)
    ahead = Norm(norm, 1e-5)
    together = ops.project(x, weight, bias, norm=ahead)
    gated = ops.gated(x, weight, bias, ahead, silu)
    for i in range(23):
        row = x[i : i + 1]
        assert torch.equal(ops.project(row, weight, bias, norm=ahead)[0], together[i])
        assert torch.equal(ops.gated(row, weight, bias, ahead, silu)[0], gated[i])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(
    ops: NativeOps, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randn(shape, dtype=ops._dtype) for shape in ((9, 320), (701, 320)))
    expected = ops.project(x, weight)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(ops.project(x, weight), expected)


@pytest.mark.parametrize("committed", [0, 1, 3, 50])
def test_attention_to_a_path_is_that_of_the_tree(ops: NativeOps, committed: int) -> None:
    """Siblings between a node and its ancestors do not change a node's bits."""
    torch.manual_seed(0)
    dtype, start = ops._dtype, torch.tensor(committed)
    layout = TreeLayout.from_parents([0, 0, 0, 1, 1, 2, 4], CPU)
    cached = CacheRows.of(torch.randn(80, 2 * HEADS.kv_width, dtype=dtype), *[(2, 64)] * 2)
    queries = torch.randn(7, HEADS.query_width, dtype=dtype)
    mask = TreeMask(start, layout.bias(dtype), CacheSpan(committed))
    whole = ops.attend(queries, cached, mask, HEADS)
    path, zero = [0, 1, 4, 6], torch.zeros(1, 1, dtype=dtype)
    moved = cached.all.clone()
    moved[committed : committed + 4] = cached.all[torch.tensor(path) + committed]
    alone = CacheRows.of(moved, *[(2, 64)] * 2)
    for depth in range(4):
        chain = TreeMask(start + depth, zero, CacheSpan(committed + depth))
        alone_output = ops.attend(queries[path[depth] :][:1], alone, chain, HEADS)
        assert torch.equal(alone_output[0], whole[path[depth]])


def test_logits_over_a_tree_are_those_of_vanilla_bit_by_bit(folder: Path) -> None:
    execution = Execution(native_ops(torch.float32, folder))
    target = load_in(TINY / "target", execution=execution)
    prompt = list(range(5, 40))
    layout = TreeLayout.from_parents([0, 0, 0, 1, 1, 3, 5, 2], CPU)
    tree = DraftTree(torch.arange(50, 58), layout, layout.num_nodes)
    target.prefill(prompt, num_new=20)
    whole = target.forward(tree).logits.clone()
    target.prefill(prompt, num_new=20)
    for node in (0, 1, 3, 5, 6):
        step = target.forward(DraftTree.chain(tree.tokens[node : node + 1]))
        assert torch.equal(step.logits[0], whole[node])
        target.commit([0])
    prefill = target.prefill([*prompt, *tree.tokens[[0, 1, 3, 5, 6]].tolist()])
    assert torch.equal(prefill.logits[0], whole[6])


def test_what_has_no_code_is_left_to_torch(folder: Path) -> None:
    ops = native_ops(torch.float32, folder)
    x, weight = torch.randn(3, 8).half(), torch.randn(5, 8).half()
    assert torch.equal(ops.project(x, weight), TORCH.project(x, weight))
    many = torch.randn(300, 8)
    assert torch.equal(ops.project(many, weight.float()), TORCH.project(many, weight.float()))
    far = torch.randn(8, 3).T
    assert torch.equal(ops.project(far, weight.float()), TORCH.project(far, weight.float()))
    cached = CacheRows.of(torch.randn(9, 12), *[(1, 6)] * 2)
    mask = TreeMask(torch.tensor(4), torch.zeros(1, 1), CacheSpan(4))
    native, expected = (
        operations.attend(torch.ones(1, 6), cached, mask, Heads(1, 1, 6))
        for operations in (ops, TORCH)
    )
    assert torch.equal(native, expected)


def test_rotation_and_cache_of_one_shared_position(ops: NativeOps) -> None:
    """All rows may share the embeddings of one position."""
    torch.manual_seed(0)
    dtype = ops._dtype
    qkv = torch.randn(4, HEADS.query_width + 2 * HEADS.kv_width, dtype=dtype)
    slots = CacheSlots(torch.tensor([7, 2, 5, 0]), torch.randn(1, 2, 1, 2, 32, dtype=dtype))
    results = []
    for operations in (ops, TORCH):
        rotated = qkv.clone()
        cached = CacheRows.of(torch.zeros(9, 2 * HEADS.kv_width, dtype=dtype), *[(2, 64)] * 2)
        operations.write_kv(rotated, cached, slots, HEADS)
        results.append((rotated, cached.all))
    for native, right in zip(*results, strict=True):
        assert (native - right).abs().max() <= (1e-6 if dtype == torch.float32 else 0.04)


class TestBuilding:
    """The library, its compiler and its folder."""

    def test_it_is_compiled_once(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        native_ops(torch.float32, folder)
        libraries = sorted(folder.glob("*.so"))
        monkeypatch.setattr(native_build, "_compiled", lambda *args: pytest.fail("compiled again"))
        native_ops(torch.float32, folder)
        assert sorted(folder.glob("*.so")) == libraries

    @pytest.mark.parametrize(
        ("script", "reason"),
        [
            (None, "no C compiler is installed (looked for {cc})"),
            ("echo why >&2; exit 1", "{cc} fails: why"),
            (r"printf '\377\033[31mwhy' >&2; exit 1", "{cc} fails: \ufffd [31mwhy"),
            ("kill -9 $$", "{cc} fails: signal 9 ended it"),
            ("exit 0", "No such file or directory"),
            ('for last; do :; done; echo half > "$last"', "file too short"),
        ],
    )
    def test_a_compiler_that_fails_leaves_torch_and_no_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str
    ) -> None:
        cc, kept, scratch = (tmp_path / name for name in ("cc", "kept", "scratch"))
        scratch.mkdir()
        if script is not None:
            version = r"printf 'cc \377 1.2\n'"
            cc.write_text(f"#!/bin/sh\ntest $1 = --version && {{ {version}; exit; }}\n{script}\n")
            cc.chmod(0o755)
        monkeypatch.setenv("CC", str(cc))
        monkeypatch.setattr(tempfile, "tempdir", str(scratch))
        picked = pick_native_ops(torch.float32, kept)
        assert picked.name == "torch" and picked.reason
        assert reason.format(cc=cc) in picked.reason
        assert not [*kept.glob("*"), *scratch.iterdir()]

    @pytest.mark.parametrize("damage", ["cut", "changed", "writable", "open folder", "a link"])
    def test_a_library_that_may_not_be_ours_is_made_anew(
        self, tmp_path: Path, folder: Path, damage: str
    ) -> None:
        native_ops(torch.float32, folder)
        content = {library.name: library.read_bytes() for library in folder.glob("*.so")}
        (other := tmp_path / "kept").mkdir(mode=0o700)
        for name, whole in content.items():
            library = other / name
            half = {"cut": whole[:5000], "changed": b"x" + whole[1:]}.get(damage, whole)
            library.write_bytes(half)
            os.utime(library, (0, 0))
            library.chmod(0o666 if damage == "writable" else 0o600)
            if damage == "a link":
                library.rename(tmp_path / name)
                library.symlink_to(tmp_path / name)
                os.utime(library, (0, 0), follow_symlinks=False)
        other.chmod(0o777 if damage == "open folder" else 0o700)
        assert native_ops(torch.float32, other).name.startswith("native code (")
        (compiled,) = [file for file in other.iterdir() if file.lstat().st_mtime]
        assert content[compiled.name] == compiled.read_bytes()
        assert (compiled.stat().st_mode & 0o777, other.stat().st_mode & 0o777) == (0o700, 0o700)

    @pytest.mark.parametrize("is_owned", [False, True])
    def test_a_folder_of_others_is_left_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_owned: bool
    ) -> None:
        """The folder's owner, or anyone who can replace it through the parent folder, could put any
        code into it.
        """
        if is_owned:
            tmp_path.chmod(0o777)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert native_ops(torch.float32, tmp_path / "kept").name.startswith("native code (")
        assert not [*(tmp_path / "kept").iterdir()]

    def test_half_a_build_of_a_killed_process_goes(self, tmp_path: Path) -> None:
        (tmp_path / "build-old").mkdir()
        with native_build._locked(tmp_path), tmp_path.joinpath("build-new").open("w"):
            assert native_ops(torch.float32, tmp_path).name.startswith("native code (")
            assert [file.name for file in tmp_path.iterdir()] == ["build-new"]
        (tmp_path / "build-new").unlink()
        native_ops(torch.float32, tmp_path)
        assert [file.suffix for file in tmp_path.iterdir()] == [".so"]

    def test_a_relative_cache_folder_is_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "cache")
        monkeypatch.setenv("HOME", "/home/me")
        assert user_folder() == Path("/home/me/.cache/specbench/native")
        monkeypatch.setenv("HOME", "relative")
        assert user_folder().is_absolute()

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (file := tmp_path / "file").touch()
        assert native_ops(torch.float32, file / "kept").name.startswith("native code (")

    def test_dtypes_without_code(self, tmp_path: Path) -> None:
        picked = pick_native_ops(torch.float16, tmp_path)
        assert (picked.name, picked.reason) == ("torch", "there is no code for float16")

    def test_a_compiler_that_hangs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def hang(*args: object, **named: object) -> object:
            raise subprocess.TimeoutExpired("cc", 120)

        monkeypatch.setattr(subprocess, "run", hang)
        with pytest.raises(BuildError, match="timed out after 120 seconds"):
            load_library(tmp_path, Path("libgomp.so"), is_half=False)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "compiler"), KINDS)
def test_no_shape_leaves_its_memory(dtype: torch.dtype, compiler: str, tmp_path: Path) -> None:
    """Products against float64, and attention, under the address and undefined sanitizers."""
    source, program = Path(__file__).with_name("sanitized.c"), tmp_path / "sanitized"
    command = [
        *compiler.split(), "-g", "-O1", "-std=gnu11", "-fno-math-errno", "-fopenmp",
        "-march=native", f"-DHALF={int(dtype == torch.bfloat16)}", "-fno-sanitize-recover=all",
        "-fsanitize=address,undefined", f"-I{native_build.SOURCE.parent}", str(source), "-lm",
    ]  # fmt: skip
    run = partial(subprocess.run, capture_output=True, text=True)
    built = run([*command, "-o", str(program)])
    if built.returncode and "asan" in built.stderr:
        pytest.skip("the compiler brings no sanitizers")
    assert built.returncode == 0, built.stderr
    done = run([program], env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    assert done.returncode == 0, done.stdout + done.stderr
