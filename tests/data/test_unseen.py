"""No head and no setting was judged on the prompts of the run in the README's first table."""

from collections import defaultdict

from specbench.log.audit import find_unjudged
from specbench.log.run import Run
from specbench.log.store import read_run
from tests.support.paths import RECORDED


def ids_by_task(run: Run) -> dict[str, set[str]]:
    ids: dict[str, set[str]] = defaultdict(set)
    for record in run.records:
        ids[record.key.task].add(record.key.sample_id)
    return ids


def test_no_prompt_of_the_run_was_used_to_judge_heads_and_settings() -> None:
    """Heads and settings were judged on the 24 prompts of the earlier run (see
    tools/zoo/README.md).
    """
    unseen = read_run(RECORDED / "smollm2-135m-unseen")
    judged = ids_by_task(read_run(RECORDED / "smollm2-135m-cpu"))
    assert sum(map(len, judged.values())) == 24
    ids = ids_by_task(unseen)
    assert ids.keys() == judged.keys() and len(ids) == 6
    for task in ids:
        assert len(ids[task]) >= 12
        assert not ids[task] & judged[task]


def test_the_run_is_whole_and_audited() -> None:
    run = read_run(RECORDED / "smollm2-135m-unseen")
    values = run.header.spec.values
    assert (values.max_new_tokens, values.repeats, values.temperatures) == (256, 3, (0.0, 1.0))
    assert values.settings == "auto" and run.header.status == "complete"
    assert run.audit and not [*find_unjudged(run.audit, run.header)]
    assert all(result.status != "bug" for result in run.audit.results)
    sam = run.header.methods["sam:other=eagle3"]
    assert sam.settings and sam.settings.source == "auto"  # chosen on held-out text
