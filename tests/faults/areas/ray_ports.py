"""Attacks on the ports of Ray on this machine: strangers are refused, and garbage ends nothing."""

from __future__ import annotations

import json
import os
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
from specbench.measure.cluster.ray_cluster import RayCluster

with RayCluster("local") as cluster:
    ray = cluster.ray
    address = ray.get_runtime_context().gcs_address
    node = ray.nodes()[0]
    ports = [value for name, value in node.items() if name.endswith("Port") and value]
    print(json.dumps([address, [*ports, int(address.split(":")[1])]]), flush=True)
    task = ray.remote(lambda number: number + 1)
    for line in sys.stdin:
        print(ray.get(task.remote(int(line))), flush=True)
"""
GUEST = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_put(b"mine", b"1", True, b"mine")
"""
START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client of Ray's protocol."""


def attack(random: Random, folder: Path) -> None:
    process, address, ports = _cluster()
    if random.random() < 0.05:  # a process of its own takes a second
        token = random.choice((None, "0" * 64, random.randbytes(32).hex()))
        others = {name: text for name, text in os.environ.items() if "RAY_AUTH" not in name}
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}
        call = [sys.executable, "-c", GUEST, address]
        said = subprocess.run(call, env=others | own, capture_output=True, timeout=60, check=False)
        assert said.returncode, "a stranger is let in"
    else:
        with (
            suppress(OSError),
            socket.create_connection(  # Ray may hang up
                (address.split(":")[0], random.choice(ports)), timeout=1
            ) as stranger,
        ):
            stranger.sendall(random.choice((b"", START)) + random.randbytes(random.randrange(9999)))
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
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
            assert process.stdout
            if line := process.stdout.readline():
                return process, *json.loads(line)
            process.wait()
            errors.seek(0)
            said = errors.read()
        assert "Ray did not start on this machine" in said, said[-800:]
    raise AssertionError(said[-800:])
