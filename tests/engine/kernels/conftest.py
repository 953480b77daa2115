from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that keeps the libraries of this module's tests."""
    return tmp_path_factory.mktemp("native")
