"""Paths of the checkout and of the runs that it contains."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "results" / "recorded"
RECORDED_RUNS = sorted(path.parent for path in RECORDED.glob("*/run.json"))
BASELINE_RUN = ROOT / ".ci" / "baseline"
