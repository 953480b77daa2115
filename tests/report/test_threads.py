"""Reports name CPU threads that differ between methods."""

from dataclasses import replace

from msgspec import structs

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.machine import Threads
from specbench.report.notes import notes
from tests.analysis.run_factory import full_run, number


def test_threads_of_a_method_are_in_its_label_and_a_note_has_its_speedup_without_them() -> None:
    run = full_run(methods=("vanilla", "pld", "sps:num_tokens=2"), tasks=("gsm8k",))
    threads = Threads(
        1, "measured", "brief", prefill=2, methods={"pld": 1, "sps:num_tokens=2": 2},
        method_step_s={"sps:num_tokens=2": {"1": 0.004, "2": 0.002}},
    )  # fmt: skip
    run = replace(run, header=structs.replace(run.header, threads=threads))
    labels = [one.label for one in run.header.method_labels]
    assert labels == ["Vanilla", "PLD", "SpS (num_tokens=2, 2 threads)"]
    metrics = measure(run, Bootstrap(50))
    speedup = number(metrics.overall["sps:num_tokens=2", 0.0].decode_speedup)
    (found,) = [one.text for one in notes([metrics], ["run"]) if one.label == "Threads"]
    assert found == (
        "1 for vanilla's steps, 2 for all prefills; where a method has its own number, the decode "
        f"speedup with vanilla's would be about: SpS (num_tokens=2, 2 threads) {speedup / 2:.2f}x."
    )
