"""Serving engines that specbench starts itself: how each is called, one file an engine."""

from __future__ import annotations

from collections.abc import Mapping

from specbench.run.backends.server.engines.base import Engine
from specbench.run.backends.server.engines.llamacpp import LLAMACPP
from specbench.run.backends.server.engines.sglang import SGLANG
from specbench.run.backends.server.engines.vllm import VLLM

ENGINES: Mapping[str, Engine] = {one.name: one for one in (VLLM, SGLANG, LLAMACPP)}
"""Engines by their name on the command line."""
