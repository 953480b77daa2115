"""The suite's row that measures energy, run on a CPU with a fake counter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from benchmarks.gpu.row import check_energy, check_figures
from benchmarks.gpu.rows import METERED, all_rows, select
from benchmarks.gpu.suite import _parse
from specbench.errors import SpecbenchError
from specbench.log.run import Run
from specbench.log.store import RunFolder, read_run
from specbench.measure.local.engine import EngineBackend
from specbench.measure.plan import make_plan
from specbench.measure.session import run_plan
from specbench.types import Completion, Request
from tests.measure.test_resume import cut
from tests.support.metered_gpu import IDLE_W, MeteredGpu
from tests.support.watching import Watcher

SMALL = ("--device", "cpu", "--model", "tiny", "--limit", "1", "--max-new-tokens", "4")


def test_a_resumed_run_keeps_the_energy_of_each_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = MeteredGpu(monkeypatch)
    decode = EngineBackend._decode

    def timed(backend: EngineBackend, method: str, request: Request, **more: Any) -> Completion:
        gpu.passes(1.0)
        return decode(backend, method, request, **more)

    monkeypatch.setattr(EngineBackend, "_decode", timed)
    (row,) = select(all_rows(_parse(SMALL)), ["energy"])
    assert row.spec and row.spec.methods == METERED and len(METERED) == 5

    def run() -> Run:
        assert row.spec
        return run_plan(make_plan(row.spec, is_offline=True), tmp_path, Watcher(), given=())

    header = run().header
    assert [energy.method for energy in header.energy] == [*METERED]
    for energy in header.energy:
        assert energy.joules_per_token == pytest.approx(400.0 / 4)
        assert (energy.tick_j, energy.idle_w, energy.duration_s) == (40.0, IDLE_W, 6.0)
    on_gpu = replace(row, spec=structs.replace(row.spec, device="cuda"))
    check_figures(row, tmp_path)
    check_energy(on_gpu, tmp_path)
    cut(tmp_path)
    gpu.is_still = True  # nothing is measured anew
    assert run().header.energy == header.energy
    without = structs.replace(read_run(tmp_path).header, energy=header.energy[1:])
    with RunFolder(tmp_path) as folder:
        folder.write_header(without)
    with pytest.raises(SpecbenchError, match="energy-tiny has no energy for vanilla"):
        check_energy(on_gpu, tmp_path)
    check_energy(row, tmp_path)  # a CPU may have no counter
