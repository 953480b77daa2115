"""Reading several folders as runs: those that can be read are taken."""

from pathlib import Path

import pytest

from specbench.errors import RunFolderError
from specbench.log.folders import readable_runs
from specbench.log.run import Run
from specbench.log.store import read_run
from tests.support.paths import RECORDED

VLLM_RUN = RECORDED / "vllm-cpu"


def test_a_run_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    messages: list[str] = []
    runs = readable_runs([tmp_path, VLLM_RUN], read_run, messages.append)
    assert [run.path for run in runs] == [VLLM_RUN]
    assert (
        len(messages) == 1 and messages[0].startswith("Left out: ") and str(tmp_path) in messages[0]
    )


def test_no_readable_folder_is_an_error_and_an_empty_list_is_allowed(tmp_path: Path) -> None:
    messages: list[str] = []
    with pytest.raises(RunFolderError, match="later"):
        readable_runs([tmp_path / "first", tmp_path / "later"], read_run, messages.append)
    assert readable_runs([], read_run, messages.append) == list[Run]() and not messages
