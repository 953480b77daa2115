"""Checkpoints. Each invalid config, header or index file gives one message."""

import hashlib
import json
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import CheckpointError, TooLarge, UserError
from specbench.machine.memory import free_bytes
from specbench.models.cards import find_model
from specbench.models.checkpoints import (
    check_checkpoint,
    check_same_vocabulary,
    identify,
    stored_format,
    weight_files,
)
from specbench.models.memory import GRAPH_RESERVE, check_context, check_fits, estimate
from specbench.models.tensor_header import safetensors_header
from tests.models.making import make_checkpoint, write_safetensors
from tests.support.checkpoint import make_tokenizer
from tests.support.refusals import error_with

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ENTRY = {"dtype": "F16", "shape": [8], "data_offsets": [0, 16]}


def of_header(**entries: object) -> bytes:
    """A safetensors file with this header and 16 bytes of data."""
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


def index_of(*names: object) -> bytes:
    return json.dumps({"weight_map": dict(enumerate(names))}).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose files look like a whole checkpoint."""
    return make_checkpoint(tmp_path / "model")


DAMAGED: list[tuple[str, bytes | None, str]] = [
    (CONFIG, None, "has no config.json"),
    (CONFIG, b'{"a":' * 100_000, "config.json cannot be read"),
    (CONFIG, b'{"text_config": 3}', "config.json cannot be read.*it is not a JSON object"),
    (CONFIG, b'{"text_config": {"head_dim": 0}}', "config.json cannot be read.*head_dim is 0"),
    *(
        (CONFIG, json.dumps({name: setting}).encode(), re.escape(f"{name} is {setting!r}"))
        for name, setting in (
            *(("num_hidden_layers", number) for number in (0, -2, 10**9, True)),
            *(("head_dim", 0), ("hidden_size", "16"), ("rms_norm_eps", float("nan"))),
            *(("rope_theta", 0), ("dtype", ["float16"])),
        )
    ),
    ("tokenizer.json", None, "lacks a tokenizer"),
    (WEIGHTS, None, "lacks weights"),
    (WEIGHTS, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
    *(
        (WEIGHTS, of_header(w=ENTRY)[:size], r"ors (is truncated|cannot be read: .* cut off)")
        for size in (0, 4, 20, -1)
    ),
    *(
        (WEIGHTS, of_header(w={**ENTRY, name: setting}), r"model\.safetensors ")
        for name, values in {
            "data_offsets": ([-1, 16], [0.0, 16], [0, 8], [8, 0], [0]),
            "shape": ([-8], [4], 8),
            "dtype": (None, "F64"),
        }.items()
        for setting in values
    ),
    (WEIGHTS, of_header(a=ENTRY, b=ENTRY), "the offsets 0 to 16 of b are wrong"),
]


def refusal(folder: Path) -> str:
    """The message with which a checkpoint folder is refused."""
    with pytest.raises(CheckpointError) as caught:
        check_checkpoint(folder, what="Model mine")
    assert caught.value.message.startswith("Model mine: ")
    assert caught.value.hint
    return caught.value.message


@pytest.mark.parametrize(("name", "content", "said"), DAMAGED, ids=lambda part: str(part)[:40])
def test_a_missing_or_damaged_file_is_named_with_what_is_wrong(
    folder: Path, name: str, content: bytes | None, said: str
) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    assert re.search(said, refusal(folder))


@pytest.mark.parametrize("name", [f"../{WEIGHTS}", "/etc/passwd", 3, None, ["a"], f"a/{WEIGHTS}"])
def test_an_index_may_name_only_files_beside_it(folder: Path, name: object) -> None:
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_bytes(index_of(name))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json cannot be read"):
        check_checkpoint(folder, what="Model mine")


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-1.safetensors")
    (folder / INDEX).write_bytes(index_of("model-1.safetensors", "model-2.safetensors"))
    assert "lacks model-2.safetensors" in refusal(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "medusa_lm_head.pt"])
def test_a_truncated_zip_of_weights_is_found(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    file = folder / name
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", b"x" * 1000)
    check_checkpoint(folder, what="Model mine")
    whole = file.read_bytes()
    file.write_bytes(whole[:500])
    assert f"{name} is truncated or damaged (500 bytes)" in refusal(folder)
    # The locator of a 64-bit archive stands before the last 22 bytes: this one has two disks.
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 2)
    file.write_bytes(whole[:-22] + locator + whole[-22:])
    assert f"{name} is truncated or damaged" in refusal(folder)


def test_safetensors_are_preferred_and_other_copies_are_not_weights(folder: Path) -> None:
    for name in ("pytorch_model.bin", "consolidated.safetensors", "training_args.bin"):
        (folder / name).write_bytes(b"x")
    assert [file.name for file in weight_files(folder)] == ["model.safetensors"]
    (folder / "model.safetensors").unlink()
    assert [file.name for file in weight_files(folder)] == ["pytorch_model.bin"]


def test_a_checkpoint_is_identified_by_commit_and_hashes(tmp_path: Path) -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    path = make_checkpoint(tmp_path / "models--a--b" / "snapshots" / commit)
    blob = tmp_path / ("f" * 64)  # a name that is not the hash of the content
    (path / "model.safetensors").rename(blob)
    (path / "model.safetensors").symlink_to(blob)
    (path / "model.gguf").write_bytes(b"GGUF")  # llama.cpp reads it, and not the weights above
    checkpoint = identify(path)
    assert checkpoint.revision == commit
    hashes = {name: file.sha256 for name, file in checkpoint.files.items()}
    assert hashes["config.json"] == hashlib.sha256((path / "config.json").read_bytes()).hexdigest()
    assert hashes["model.safetensors"] == hashlib.sha256(blob.read_bytes()).hexdigest()
    assert hashes["model.gguf"] == hashlib.sha256(b"GGUF").hexdigest()
    assert str(tmp_path) not in repr(checkpoint)


PADS = ("<|pad|>", "<|more|>")


@pytest.mark.parametrize(
    ("target", "draft", "said"),
    [
        ({}, {}, ""),
        ({"extra": ("<|reserved_1|>",)}, {"extra": PADS}, ""),
        ({"extra": (*PADS, "<|last|>")}, {"extra": PADS}, "1 differ"),
        ({"extra": ("<|eot_id|>",)}, {}, "1 differ"),
        (
            {"words": ("one", "two")},
            {"words": ("one",)},
            "261, and 1 differ. Id 260 is None in the draft",
        ),
        (
            {"words": ("one",)},
            {"words": ("one", "two")},
            "260, and 1 differ. Id 260 is 'two' in the draft",
        ),
        (
            {"words": ("one", "two")},
            {"words": ("two", "one")},
            "2 differ. Id 259 is 'two' in the draft",
        ),
    ],
)
def test_a_draft_may_differ_only_in_special_tokens(
    target: dict[str, Any], draft: dict[str, Any], said: str
) -> None:
    tokenizers = make_tokenizer(**target), make_tokenizer(**draft)
    if not said:
        check_same_vocabulary(*tokenizers)
        return
    with error_with(CheckpointError, said):
        check_same_vocabulary(*tokenizers)


def test_the_memory_of_a_folder_is_read_from_its_headers(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", num_values=1000)
    need = estimate(folder, "float32", context=10, what="it")
    assert need.weight_bytes == 4000
    assert need.kv_bytes == 4 * 2 * 2 * 2 * 4 * 10  # float32, k and v, layers, heads, size, tokens
    make_checkpoint(folder, kv_lora_rank=16, qk_rope_head_dim=8)
    need = estimate(folder, "float32", context=10, what="it")
    assert need.kv_bytes == 4 * 2 * (16 + 8) * 10  # the latent and its rotary part


def test_integer_tensors_and_pickles_count_in_their_own_dtype(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", num_values=100, dtype="I64")
    assert estimate(folder, "float32", context=1, what="it").weight_bytes == 800
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(bytes(200))
    assert estimate(folder, "float32", context=1, what="it").weight_bytes == 400


def test_a_model_that_does_not_fit_is_refused_before_its_download_with_both_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = find_model("vicuna-13b").shape
    assert shape is not None
    monkeypatch.setattr("specbench.models.memory.free_bytes", lambda _: 20_000_000_000)
    with error_with(
        UserError,
        "needs about 28.0 GB in float16 (26.0 GB for weights",
        "cuda has 20.0 GB free",
        hint="more GPUs",
    ):
        check_fits(shape, "float16", "cuda", what="vicuna-13b")


def test_a_context_that_does_not_fit_is_refused_with_the_one_that_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Llama-3.1 8B with 32k tokens, on a card of 24 GB that holds it with 2k."""
    shape, free = find_model("llama3.1-8b").shape, 24_000_000_000
    assert shape is not None
    monkeypatch.setattr("specbench.models.memory.free_bytes", lambda _: free)
    need = check_fits(shape, "bfloat16", "cuda", has_graphs=True)
    kv_bytes = 2 * 32 * 8 * 128 * 2 * 32768
    longer = need.at(32768)
    assert longer.kv_bytes == longer.growth_bytes == kv_bytes
    assert longer.prefill_bytes == 16 * need.prefill_bytes
    with pytest.raises(UserError) as caught:
        check_context(need, 32768, "bfloat16", "cuda", what="Llama")
    assert "4.3 GB for 32768 tokens of context, 4.3 GB for copying" in caught.value.message
    match = re.search(r"Requests of up to (\d+) tokens fit", caught.value.hint)
    assert match is not None and 10_000 < int(match[1]) < 20_000
    check_context(need, int(match[1]), "bfloat16", "cuda", what="Llama")
    with pytest.raises(UserError):
        check_context(need, int(match[1]) + 10, "bfloat16", "cuda", what="Llama")


def test_the_estimate_includes_draft_weights_and_graphs(folder: Path, tmp_path: Path) -> None:
    head = tmp_path / "head"
    head.mkdir()
    write_safetensors(head / "model.safetensors", num_values=1000)
    alone = check_fits(folder, "float16", "cpu")
    need = check_fits(folder, "float16", "cpu", drafts=[head, head], has_graphs=True)
    assert (alone.draft_bytes, alone.reserve_bytes) == (0, 0)
    assert need.total_bytes == alone.total_bytes + 2 * 2 * 1000 + GRAPH_RESERVE


def test_a_model_that_only_fits_without_graphs_is_refused_with_the_way_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = check_fits(folder, "float32", "cpu")
    monkeypatch.setattr("specbench.models.memory.free_bytes", lambda _: need.total_bytes)
    with error_with(UserError, "for CUDA graphs)", hint="--execution eager"):
        check_fits(folder, "float32", "cuda", has_graphs=True)


def test_a_containers_limit_counts_before_the_machines_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"memory.max": "5000", "memory.current": "3000", "memory.stat": "inactive_file 500"}
    for name, limit in limits.items():
        (tmp_path / name).write_text(limit + "\n")
    monkeypatch.setattr("specbench.machine.memory._CGROUP", tmp_path)
    assert free_bytes("cpu") == 2500
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes("cpu") > 5000


def test_only_the_memory_of_named_gpus_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: ((10, 20, 40)[number], 100))
    free = {"cuda": 10, "cuda:1": 20, "cuda:1-2": 60, "cuda:0-2": 70}
    assert {device: free_bytes(device) for device in free} == free


def test_models_too_large_for_the_gpus_report_how_many_they_need(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = check_fits(folder, "float32", "cpu")
    monkeypatch.setattr("specbench.models.memory.free_bytes", lambda _: need.total_bytes - 1)
    for device, words, number in (
        ("cuda:1", "cuda:1 has ", 2), ("cuda:0-2", "the 3 GPUs cuda:0-2 have ", 4)
    ):  # fmt: skip
        with pytest.raises(TooLarge) as caught:
            check_fits(folder, "float32", device)
        assert words in caught.value.message
        assert caught.value.message.endswith(f" free: {number} such GPUs are needed.")
        assert caught.value.num_gpus_needed == number


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, ""),
        ({"quant_method": "awq", "bits": 4}, "awq int4"),
        ({"quant_method": "fp8", "bits": "4"}, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes int8"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            "bitsandbytes nf4",
        ),
        (["awq"], ""),
    ],
)
def test_a_stored_format_is_named_with_its_numbers(config: Any, expected: str) -> None:
    assert stored_format({"quantization_config": config}) == expected


def test_a_config_that_claims_more_than_the_machine_holds_is_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", vocab_size=2**28, hidden_size=2**24)
    with pytest.raises(UserError, match="does not fit"):
        check_fits(folder, "float32", "cpu")


def test_a_pipe_in_place_of_weights_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / WEIGHTS
    os.mkfifo(file)
    with pytest.raises(CheckpointError, match="not a regular file"):
        safetensors_header(file, "Model mine")
