"""A separate cache for a test, without the settings that the user tuned."""

from pathlib import Path

import pytest


def own_cache(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put the cache into the subfolder `specbench` of a folder."""
    patch.delenv("SPECBENCH_CACHE", raising=False)
    patch.setenv("XDG_CACHE_HOME", str(folder))
