"""The damage that several areas do to bytes, values, tensors and whole files."""

import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file

DEEP = '{"a":' * 100_000
_TEXTS = ("", "<!doctype html><title>Not found</title>", DEEP, "[]", "{}", "null", "\0" * 99)


class Code:
    """An object whose pickle runs a command when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch executed",)


def damaged(random: Random, content: bytes) -> bytes:
    """The content with its end cut off, with flipped bits, or with a stretch replaced.

    The damage is often near the beginning.
    """
    changed, size = bytearray(content), min(len(content), random.choice((5000, len(content))))
    start, kind = random.randrange(size + 1), random.randrange(4)
    if kind == 0:
        del changed[start:]
    elif kind == 1 and size:
        for _ in range(random.choice((1, 10, 1000))):
            changed[random.randrange(size)] ^= 1 << random.randrange(8)
    else:
        noise = random.randbytes(random.choice((1, 200)))
        stretch = random.choice((noise, noise, b"", b"\n", b"\0", b'"', b"{", b"-", b"9"))
        changed[start : start + random.choice((0, 1, 1, 10, 1000))] = stretch
    return bytes(changed)


def damage_file(random: Random, folder: Path) -> None:
    file = random.choice(sorted(folder.iterdir()))
    file.write_bytes(damaged(random, file.read_bytes()))


def replace_file(random: Random, file: Path) -> None:
    """Put a folder, a link to itself, a pipe, code, another text or nothing in a file's place."""
    file.unlink(missing_ok=True)
    kind = random.randrange(12)
    if kind == 0:
        file.mkdir()
    elif kind == 1:
        file.symlink_to(file)
    elif kind == 2:
        os.mkfifo(file)
    elif kind < 5:
        file.write_bytes(pickle.dumps(Code()))
    elif kind < 7:
        torch.save({"code": Code()}, file)
    elif kind < 11:
        file.write_text(random.choice(_TEXTS))


def change_value(
    random: Random, container: Any, values: Sequence[Any], more: Sequence[str] = ()
) -> None:
    """Replace or remove one value in nested lists and dicts. `more` are keys that may be added."""
    while keys := (
        [*container, *more] if isinstance(container, dict) else [*range(len(container))]
    ):
        key = random.choice(keys)
        is_present = key not in more or key in container
        if is_present and isinstance(container[key], dict | list) and random.random() < 0.8:
            container, more = container[key], ()
            continue
        if is_present and random.random() < 0.1:
            del container[key]
        else:
            container[key] = random.choice(values)
        return


def change_tensors(random: Random, folder: Path) -> None:
    """Drop, add, reshape, retype or spoil a tensor."""
    file = next(file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin", ".pt"))
    is_safe = file.suffix == ".safetensors"
    tensors: Any = load_file(file) if is_safe else torch.load(file)
    name = random.choice(sorted(tensors))
    kind = random.randrange(5)
    if kind == 0:
        tensors[f"{name}.more"] = tensors[name].clone()
    elif kind == 1:
        tensors[name] = torch.zeros(random.choice(((3,), (2**10, 2), (0,), (1, 1, 1))))
    elif kind == 2:
        tensors[name] = tensors[name].to(random.choice((torch.int8, torch.bool, torch.float16)))
    elif kind == 3:
        tensors[name] = torch.full_like(tensors[name], random.choice((0, 1)))
        if tensors[name].is_floating_point():
            largest = torch.finfo(tensors[name].dtype).max
            tensors[name].fill_(random.choice((torch.nan, torch.inf, largest, 0.0)))
    else:
        del tensors[name]
    save_file(tensors, file, {"format": "pt"}) if is_safe else torch.save(tensors, file)
