from pathlib import Path

import pytest

from tests.models.making import make_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole checkpoint, as far as files can tell."""
    return make_checkpoint(tmp_path / "model")
