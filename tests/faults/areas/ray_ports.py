"""Garbage to the ports of Ray on this machine ends nothing; tests/ray shows who may use them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

NEEDS = "ray"
TRIES = 200
CLUSTER = """
import json, sys
from specbench.measure.cluster import connected

with connected("local") as ray:
    address = ray.get_runtime_context().gcs_address
    node = ray.nodes()[0]
    ports = [value for name, value in node.items() if name.endswith("Port") and value]
    print(json.dumps([address, [*ports, int(address.split(":")[1])]]), flush=True)
    task = ray.remote(lambda number: number + 1)
    for line in sys.stdin:
        print(ray.get(task.remote(int(line))), flush=True)
"""
START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client of Ray's protocol."""


def attack(random: Random, folder: Path) -> None:
    process, address, ports = _cluster()
    garbage = random.choice((b"", START)) + random.randbytes(random.randrange(9999))
    place = (address.split(":")[0], random.choice(ports))
    with suppress(OSError), socket.create_connection(place, timeout=1) as stranger:
        stranger.sendall(garbage)  # Ray may hang up
    number = random.randrange(10**6)
    print(number, file=process.stdin, flush=True)
    assert process.stdout.readline().strip() == str(number + 1), "Ray has ended"


@cache
def _cluster() -> tuple[Any, str, list[int]]:
    """A local cluster, with its address and ports, that lives as long as this process.

    It has a second try: Ray ends if its processes need more than 15 s to start.
    """
    for _ in range(2):
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", CLUSTER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            assert process.stdout
            if line := process.stdout.readline():
                return process, *json.loads(line)
            process.wait()
            errors.seek(0)
            said = errors.read()
        assert "Ray did not start on this machine" in said, said[-800:]
    raise AssertionError(said[-800:])
