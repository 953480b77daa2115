"""Hubs that stall, drip, reset or send something else: one message, and no partial file is left."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import get_args
from unittest.mock import patch

from huggingface_hub import constants

from specbench.errors import CheckpointError
from specbench.models import hub
from specbench.models.hub import resolve
from tests.support.hub_server import REPO, Fault, hub_server

TRIES = 40
HARMLESS = ("none",)


def attack(random: Random, folder: Path) -> None:
    fault = random.choice(get_args(Fault))
    files = {
        "config.json": json.dumps({"model_type": "llama"}).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": bytes(random.choice((10, 40 * 2**20, 60 * 2**20))),
    }
    is_small = len(files["model.safetensors"]) < 2**20
    with ExitStack() as stack:
        address = stack.enter_context(hub_server(files, fault))
        stack.enter_context(patch.object(constants, "ENDPOINT", address))
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        stack.enter_context(patch.object(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template))
        stack.enter_context(patch.object(constants, "HF_HUB_CACHE", str(folder / "hub")))
        stack.enter_context(patch.object(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5))
        stack.enter_context(patch.object(hub, "LIST_LIMIT_S", 1.0))
        own = {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "0"}
        stack.enter_context(patch.dict(os.environ, own))
        try:
            found = resolve(REPO, offline=False, what="Model mine")
        except CheckpointError as error:
            assert fault not in HARMLESS, error.message
            assert error.message.startswith("Model mine: ") and error.hint
            assert "\n" not in error.message and "Traceback" not in error.message
        else:
            slow = fault in ("stalls", "drips")
            assert fault in HARMLESS or (slow and (is_small or fault == "drips")), fault
            assert {one.name: one.read_bytes() for one in found.iterdir()} == files
    assert not [*folder.rglob("*.incomplete")]
