"""Files of a report: each is written whole or not at all."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from specbench.errors import RunFolderError


def write_files(out_dir: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write these files into a folder, which is made where it is missing.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            _write_whole(out_dir / name, content)
    except OSError as error:
        raise RunFolderError(
            f"The report cannot be written to {out_dir}: {error.strerror or error}.",
            "Give a folder that can be written to.",
        ) from error
    return [out_dir / name for name in files]


def _write_whole(path: Path, content: bytes) -> None:
    """Written beside its place and then moved there, so that no reader sees a half."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
