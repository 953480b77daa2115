"""The folders of all parts in one file, for machines that return few files."""

from __future__ import annotations

import tarfile
from pathlib import Path


def pack(work: Path, archive: Path) -> None:
    """Rewrite the archive; the old one stays until the new one is complete."""
    scratch = archive.with_name(f"{archive.name}.new")
    with tarfile.open(scratch, "w:gz") as file:
        for folder in sorted(path for path in work.iterdir() if path.is_dir()):
            file.add(folder, folder.name)
    scratch.replace(archive)


def unpack(archive: Path, work: Path) -> None:
    """Restore the folders packed by an earlier call, except those that exist."""
    if not archive.exists():
        return
    with tarfile.open(archive) as file:
        there = {path.name for path in work.iterdir()}
        for member in file:
            if member.name.partition("/")[0] not in there:
                file.extract(member, work, filter="data")
