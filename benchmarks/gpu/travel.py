"""Send the checkout to a machine with a GPU, in calls of at most 64 MiB, and fetch results.

    python -m benchmarks.gpu.travel size [PATH ...]       # git's files, and ignored paths with them
    python -m benchmarks.gpu.travel aside [--zoo] [-- COMMAND ...]
    python -m benchmarks.gpu.travel back
    python -m benchmarks.gpu.travel split FILE --out DIR  # pieces of at most 45 MiB
    python -m benchmarks.gpu.travel take DIR --out DIR    # keep the pieces that this call brought
    python -m benchmarks.gpu.travel join DIR --out DIR
    python -m benchmarks.gpu.travel pack RESULTS --out DIR   # an archive in files below 16 MiB

`aside` moves files that the suite does not read into build/aside: recorded runs, reports, docs and
the training texts. With --zoo, it also moves the weights that come with specbench. With a COMMAND,
it moves everything back when the command ends or is stopped. `back` does this at any time. `pack`
leaves compiled kernels out.
"""

from __future__ import annotations

import argparse
import filecmp
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu import pieces
from specbench.errors import SpecbenchError, UserError

ROOT = Path(__file__).parents[2]
MIB = 2**20
MOST_MIB, MANY_MIB = 64, 62
"""The limit of a call in MiB, and the smallest sum at which `size` warns."""
PIECE_MIB, RESULT_MIB = 45, 15
UNREAD = ("docs", "reports", "results/recorded", "tools/zoo")
"""Folders that the suite does not read."""
ZOO = "specbench/zoo"
ASIDE = Path("build/aside")
KERNELS = "triton"
"""The folder of compiled kernels in the results."""


def travelling(root: Path, carried: Sequence[str] = ()) -> Iterator[tuple[Path, int]]:
    """The files that are sent, with their sizes in bytes.

    They are tracked files, new files that git does not ignore, and `carried`. Paths are relative to
    the repository's root.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    paths = {Path(name) for name in listed.split("\0") if name}
    for name in carried:
        path = root / name
        files = path.rglob("*") if path.is_dir() else [path]
        paths |= {file.relative_to(root) for file in files}
    for path in sorted(paths):
        if (root / path).is_file():  # git also lists files that were moved aside
            yield path, (root / path).stat().st_size


def size_text(root: Path, carried: Sequence[str] = ()) -> str:
    """The size of the files that are sent, and the largest folders. Warns near the limit."""
    by_folder: Counter[str] = Counter()
    for path, num_bytes in travelling(root, carried):
        by_folder["/".join(path.parts[:2]) if len(path.parts) > 2 else path.parts[0]] += num_bytes
    total_mib = by_folder.total() / MIB
    largest = ", ".join(f"{name} {count / MIB:.1f}" for name, count in by_folder.most_common(4))
    text = f"{total_mib:.1f} MiB are sent to the GPU machine: {largest}."
    if total_mib >= MANY_MIB:
        text += f" The limit is {MOST_MIB} MiB. `python -m benchmarks.gpu.travel aside` makes room."
    return text


def set_aside(root: Path, folders: Sequence[str]) -> None:
    """Move git's files in these folders to ASIDE. If this is interrupted, `back` restores them."""
    for path, _ in travelling(root):
        if any(path.is_relative_to(folder) for folder in folders):
            kept = root / ASIDE / path
            kept.parent.mkdir(parents=True, exist_ok=True)
            (root / path).replace(kept)


def put_back(root: Path) -> int:
    """Move all files in ASIDE back to their places, and return their number.

    Raises:
        UserError: another file is in the place of a moved file. All other files are back.
    """
    kept_files = [path for path in (root / ASIDE).rglob("*") if path.is_file()]
    changed = []
    for kept in kept_files:
        place = root / kept.relative_to(root / ASIDE)
        if place.exists() and not filecmp.cmp(place, kept, shallow=False):
            changed.append(str(place.relative_to(root)))
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        kept.replace(place)
    if changed:
        raise UserError(
            f"{', '.join(changed)}: changed while the file was set aside.",
            f"Keep one of the two: the other is in {ASIDE}. Then run `back` again.",
        )
    return len(kept_files)


def aside(root: Path, folders: Sequence[str], command: Sequence[str]) -> int:
    """Set folders aside. With a command, run it, and put the folders back even if it is stopped."""
    if not command:
        set_aside(root, folders)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        set_aside(root, folders)
        return subprocess.run(command, cwd=root, check=False).returncode
    finally:
        put_back(root)


def pack(results: Path, folder: Path) -> pieces.Manifest:
    """Pack results, without compiled kernels, into files below 16 MiB."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "results.tgz"

    def without_kernels(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if KERNELS in Path(member.name).parts else member

    with tarfile.open(archive, "w:gz") as tar:
        tar.add(results, results.name, filter=without_kernels)
    manifest = pieces.split(archive, folder, RESULT_MIB * MIB)
    archive.unlink()
    return manifest


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of the usage above."""
    words = [*(sys.argv[1:] if argv is None else argv)]
    command = words[words.index("--") + 1 :] if "--" in words else []
    given = _parse(words[: words.index("--")] if "--" in words else words)
    try:
        return _run(given, command)
    except SpecbenchError as error:
        print(f"Error: {error.message}\n{error.hint}", file=sys.stderr)
        return error.exit_code


def _run(given: argparse.Namespace, command: Sequence[str]) -> int:
    if given.action == "size":
        print(size_text(ROOT, given.paths))
    elif given.action == "aside":
        return aside(ROOT, [*UNREAD, ZOO] if given.zoo else UNREAD, command)
    elif given.action == "back":
        print(f"{put_back(ROOT)} files are back.")
    elif given.action == "split":
        manifest = pieces.split(given.path, given.out, PIECE_MIB * MIB)
        print(f"{len(manifest.pieces)} pieces of {manifest.file}")
    elif given.action == "take":
        print(f"Missing: {', '.join(pieces.take(given.path, given.out)) or 'none'}")
    elif given.action == "join":
        print(pieces.join(given.path, given.out))
    else:
        print(f"{len(pack(given.path, given.out).pieces)} files")
    return 0


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.travel", description=(__doc__ or "").splitlines()[0]
    )
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("size").add_argument("paths", nargs="*")
    actions.add_parser("aside").add_argument("--zoo", action="store_true")
    actions.add_parser("back")
    for name in ("split", "take", "join", "pack"):
        of_file = actions.add_parser(name)
        of_file.add_argument("path", type=Path)
        of_file.add_argument("--out", type=Path, required=True)
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
