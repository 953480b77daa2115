"""Serving engines that specbench starts itself: how each is called, one file an engine."""

from __future__ import annotations

from collections.abc import Mapping

from specbench.measure.server.engines.base import Engine
from specbench.measure.server.engines.llamacpp import LLAMACPP
from specbench.measure.server.engines.sglang import SGLANG
from specbench.measure.server.engines.vllm import VLLM

ENGINES: Mapping[str, Engine] = {one.name: one for one in (VLLM, SGLANG, LLAMACPP)}
"""Engines by their name on the command line."""
