"""The process that downloads a repository's files, so that a download that hangs can be ended.

Reads a request from stdin and prints a path or a HubFailure, both as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from typing import IO

CHUNK_BYTES = 2**20
"""A slow download shows progress at each of these. The client's own is 10 MiB."""


def main() -> None:
    """Answer one request."""
    answer, sys.stdout = sys.stdout, sys.stderr  # what the libraries print is no answer
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, args=(sys.stdin,), daemon=True).start()
    print(json.dumps(_download(request)), file=answer, flush=True)
    os._exit(0)  # the thread that reads stdin would hold up the interpreter


def _download(request: dict[str, object]) -> dict[str, object]:
    from huggingface_hub import constants, snapshot_download

    from specbench.data.hub import HubFailure

    constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES
    try:
        return {"path": snapshot_download(**request)}  # type: ignore[call-overload]
    except Exception as error:  # the Hub's, the network's and the disk's errors share no base
        return {"failure": dataclasses.asdict(HubFailure.of(error))}


def _end_with_parent(parent: IO[str]) -> None:
    """End this process when the one that started it is gone."""
    parent.read()
    os._exit(1)


if __name__ == "__main__":
    main()
