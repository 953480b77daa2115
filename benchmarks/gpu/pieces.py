"""Large files in pieces that are sent one by one, with a manifest that shows if all arrived."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from specbench.errors import UserError

MANIFEST = "pieces.json"
_AGAIN = "Send the pieces again."


class Piece(msgspec.Struct, frozen=True):
    """A part of a file, in a file of its own."""

    name: str
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """The pieces of a file, in their order."""

    file: str
    """Name of the whole file."""
    sha256: str
    pieces: tuple[Piece, ...]


def split(file: Path, folder: Path, most_bytes: int) -> Manifest:
    """Write a file's pieces of at most `most_bytes` into a folder, with their manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces: list[Piece] = []
    whole = hashlib.sha256()
    with file.open("rb") as stream:
        while content := stream.read(most_bytes):
            whole.update(content)
            name = f"{file.name}.{len(pieces)}"
            (folder / name).write_bytes(content)
            pieces.append(Piece(name, hashlib.sha256(content).hexdigest()))
    manifest = Manifest(file.name, whole.hexdigest(), tuple(pieces))
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return manifest


def take(folder: Path, kept: Path) -> list[str]:
    """Copy a folder's pieces to the folder that collects them, and return those still missing.

    Raises:
        UserError: a piece is damaged, or the folder has no manifest.
    """
    manifest = _read(folder)
    kept.mkdir(parents=True, exist_ok=True)
    (kept / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    for piece in manifest.pieces:
        if (folder / piece.name).exists():
            content = (folder / piece.name).read_bytes()
            _check(content, piece.sha256, folder / piece.name)
            (kept / piece.name).write_bytes(content)
    return [piece.name for piece in manifest.pieces if not (kept / piece.name).exists()]


def join(folder: Path, out: Path) -> Path:
    """Join a folder's pieces to a file in the folder `out`, and return the path of the file.

    Raises:
        UserError: a piece is missing or damaged.
    """
    manifest = _read(folder)
    missing = [piece.name for piece in manifest.pieces if not (folder / piece.name).exists()]
    if missing:
        raise UserError(f"{folder} lacks {', '.join(missing)} of {manifest.file}.", _AGAIN)
    contents = []
    for piece in manifest.pieces:
        contents.append((folder / piece.name).read_bytes())
        _check(contents[-1], piece.sha256, folder / piece.name)
    whole = b"".join(contents)
    _check(whole, manifest.sha256, folder / MANIFEST)
    out.mkdir(parents=True, exist_ok=True)
    path = out / Path(manifest.file).name
    path.write_bytes(whole)
    return path


def _read(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(f"{path} cannot be read: {error}", _AGAIN) from error


def _check(content: bytes, sha256: str, path: Path) -> None:
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{path} is damaged: its SHA-256 is not the manifest's.", _AGAIN)
