"""Clusters of Ray on this machine. Processes stand for nodes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray takes 127.0.0.1 for the address of every node."""


@pytest.fixture(scope="session", autouse=True)
def _ray() -> None:
    pytest.importorskip("ray", reason="needs Ray: make test-ray installs it")


@dataclass
class Nodes:
    """A cluster: a head without a GPU, and nodes whose GPU is only declared."""

    cluster: Any
    scratch: Path
    nodes: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, *, code: str = "", **options: Any) -> None:
        """Add a node. Each of its processes runs `code` first."""
        if code:
            folder = self.scratch / f"node-{len(self.nodes)}"
            folder.mkdir()
            (folder / "sitecustomize.py").write_text(code)
            options["env_vars"] = {"PYTHONPATH": f"{folder}:{ROOT}"}
        options = {"num_cpus": 2, "num_gpus": 1, "node_ip_address": "127.0.0.1", **options}
        self.nodes.append(self.cluster.add_node(**options))

    def kill(self, number: int) -> None:
        """Kill a node's processes, as if its machine lost power."""
        self.cluster.remove_node(self.nodes.pop(number), allow_graceful=False)

    def specbench(self, *words: object) -> subprocess.Popen[str]:
        """Start the command line as a process, with both streams in one output."""
        return subprocess.Popen(
            [sys.executable, "-m", "specbench", *map(str, words)],
            cwd=ROOT,
            env={**os.environ, **LOOPBACK, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    for name, address in LOOPBACK.items():
        monkeypatch.setenv(name, address)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "num_gpus": 0, "node_ip_address": "127.0.0.1"}
    cluster_nodes = Nodes(Cluster(initialize_head=True, head_node_args=head), tmp_path)
    try:
        yield cluster_nodes
    finally:
        cluster_nodes.cluster.shutdown()
