"""A run whose records are compressed is read like any other, and does not grow."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.errors import RunFolderError
from specbench.log.audit import records_hash
from specbench.log.folders import num_records, run_folder
from specbench.log.store import RunFolder, is_cut, read_run
from tests.support.paths import RECORDED
from tests.support.refusals import error_with

VLLM_RUN = RECORDED / "vllm-cpu"


@pytest.fixture
def compressed(tmp_path: Path) -> Path:
    """A copy of a recorded run. Its records are compressed."""
    folder = tmp_path / "vllm-cpu"
    shutil.copytree(VLLM_RUN, folder)
    return folder


def test_compressed_records_are_those_that_were_compressed(compressed: Path) -> None:
    assert read_run(compressed).records == read_run(VLLM_RUN).records
    assert records_hash(compressed) == records_hash(VLLM_RUN) != ""
    assert num_records(compressed) == num_records(VLLM_RUN) > 0
    assert not is_cut(compressed)
    assert run_folder(compressed / "samples.jsonl.gz") == compressed


def test_a_compressed_run_gets_no_further_records(compressed: Path) -> None:
    with error_with(RunFolderError, "compressed", hint="gunzip"), RunFolder(compressed):
        pass
    assert not (compressed / "samples.jsonl").exists()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "changed": lambda content: content[:2000] + b"damaged" + content[2007:],
    "other": lambda _: b"no archive",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_compressed_records_are_an_error(compressed: Path, damage: str) -> None:
    file = compressed / "samples.jsonl.gz"
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    with pytest.raises(RunFolderError):
        read_run(compressed)
    with pytest.raises(RunFolderError, match="cannot be read"):
        is_cut(compressed)
    assert num_records(compressed) == 0


def test_an_unpacked_file_counts_before_a_compressed_one(compressed: Path) -> None:
    content = gzip.decompress((VLLM_RUN / "samples.jsonl.gz").read_bytes())
    lines = content.splitlines(keepends=True)
    (compressed / "samples.jsonl").write_bytes(b"".join(lines[:3]))
    assert len(read_run(compressed).records) == 3


def test_a_file_that_was_unpacked_beside_its_compressed_form_may_grow(compressed: Path) -> None:
    lines = gzip.decompress((VLLM_RUN / "samples.jsonl.gz").read_bytes())
    (compressed / "samples.jsonl").write_bytes(lines)
    with RunFolder(compressed):
        pass
    (compressed / "trace.jsonl.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(RunFolderError, match=r"trace\.jsonl\.gz"), RunFolder(compressed):
        pass
