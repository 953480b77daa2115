"""The audit of a run: stored, read with the run, and ignored if the run went on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from specbench.errors import RunFolderError
from specbench.log.audit import AUDIT, read_audit, records_hash, write_audit
from specbench.log.store import RunFolder, read_run
from specbench.report.notes import audit_note
from tests.support.audits import failed_audit, passed_audit, stored_audit
from tests.support.headers import make_header
from tests.support.records import record

AUDITED = stored_audit(passed_audit("pld", 1.0), failed_audit("sps", 1.0, 2.0), num_records=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with RunFolder(tmp_path) as folder:
        folder.write_header(make_header())
        folder.append(record())
    return tmp_path


def test_an_audit_is_read_back_with_its_run(folder: Path) -> None:
    assert read_run(folder).audit is None
    write_audit(folder, AUDITED)
    assert read_run(folder).audit == AUDITED == read_audit(folder)
    assert [one.level for one in AUDITED.at("sps", 1.0)] == [2.0]
    assert AUDITED.smallest_tv == 0.05


def test_an_audit_of_fewer_records_is_ignored(folder: Path) -> None:
    write_audit(folder, AUDITED)
    with RunFolder(folder) as opened:
        one = record()
        opened.append(replace(one, key=replace(one.key, sample_id="gsm8k/7")))
    assert read_run(folder).audit is None


def test_an_audit_is_void_once_a_time_is_changed_and_one_without_hash_is_unknown(
    folder: Path,
) -> None:
    write_audit(folder, structs.replace(AUDITED, records_sha256=records_hash(folder)))
    assert read_run(folder).audit is not None
    samples = folder / "samples.jsonl"
    samples.write_bytes(samples.read_bytes().replace(b'"decode_s":0.25', b'"decode_s":0.24'))
    assert read_run(folder).audit is None
    write_audit(folder, AUDITED)
    assert read_run(folder).audit == AUDITED
    assert "it has no hash of the records" in audit_note(AUDITED).text


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": 2}', b'{"schema": 1}', b"[]"])
def test_a_damaged_audit_is_one_message(folder: Path, content: bytes) -> None:
    (folder / AUDIT).write_bytes(content)
    with pytest.raises(RunFolderError) as caught:
        read_run(folder)
    assert AUDIT in caught.value.message
    assert "specbench audit" in caught.value.hint
