"""Mirrors that stall, drip, reset, or send something else: one message, and no partial file."""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import get_args
from unittest.mock import patch

from huggingface_hub import constants, file_download

from specbench.data import cache
from specbench.data.cache import paper_file
from specbench.data.tasks import PaperSource
from specbench.errors import UserError
from specbench.models import hub
from specbench.models.hub import resolve
from tests.support.hub_server import REPO, Fault, hub_server

TRIES = 200
MAY_ARRIVE = ("none", "stalls", "drips")
"""Faults that a small file, or a patient client, gets through."""


def attack(random: Random, folder: Path) -> None:
    fault = random.choice(get_args(Fault))
    files = {
        "config.json": json.dumps({"model_type": "llama"}).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": random.randbytes(random.choice((10, 10, 10**6, 3 * 10**6))),
    }
    with ExitStack() as stack:
        address = stack.enter_context(hub_server(files, fault))
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        without_waits = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
        for place, name, value in (
            (constants, "ENDPOINT", address),
            (constants, "HUGGINGFACE_CO_URL_TEMPLATE", template),
            (constants, "HF_HUB_CACHE", str(folder / "hub")),
            (constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1),
            (file_download, "time", without_waits),
            (hub, "LIST_LIMIT_S", 0.5),
            (hub, "DOWNLOAD_LIMIT_S", 1.0),
            (cache, "DOWNLOAD_LIMIT_S", 0.5),
            (cache, "STALL_LIMIT_S", 0.1),
        ):
            stack.enter_context(patch.object(place, name, value))
        own = {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
        own["SPECBENCH_CACHE"] = str(folder / "prompts")
        stack.enter_context(patch.dict(os.environ, own))
        _fetch_model(fault, files)
        _fetch_prompts(random, fault, f"{address}/{REPO}/resolve/main/config.json", files)
    left = [*folder.rglob("*.incomplete"), *folder.glob("prompts/*tmp*")]
    assert not left, f"left behind: {left}"


def _fetch_model(fault: str, files: dict[str, bytes]) -> None:
    try:
        found = resolve(REPO, offline=False, what="Model mine")
    except UserError as error:
        assert fault != "none", error.message
        _check_message(error)
    else:
        assert fault in MAY_ARRIVE, fault
        assert {one.name: one.read_bytes() for one in found.iterdir()} == files


def _fetch_prompts(random: Random, fault: str, url: str, files: dict[str, bytes]) -> None:
    """Fetch a paper's file, whose pinned hash may be that of another one."""
    content = files["config.json"]
    is_pinned = random.random() < 0.7
    digest = hashlib.sha256(content if is_pinned else b"other").hexdigest()
    try:
        found = paper_file("mine", PaperSource(url, digest, "one.jsonl", 1), offline=False)
    except UserError as error:
        assert fault != "none" or not is_pinned, error.message
        _check_message(error)
        assert not Path(os.environ["SPECBENCH_CACHE"], "one.jsonl").exists()
    else:
        assert is_pinned and found.read_bytes() == content


def _check_message(error: UserError) -> None:
    assert error.message and error.hint, error
    assert "\n" not in error.message and "Traceback" not in error.message, error.message
