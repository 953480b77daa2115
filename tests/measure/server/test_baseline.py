"""A server that is labelled vanilla and drafts is refused, wherever its drafts first show."""

from collections.abc import Sequence

import pytest

from specbench.errors import UserError
from specbench.measure.server.openai_api import completions
from specbench.measure.server.running_setup import make_running_setup
from specbench.measure.spec import RunSpec
from tests.measure.server.test_backend import Kept, run
from tests.support.stub_server import Stub, serving

NO_DRAFTS = {
    "generation_tokens_total": 50.0,
    "spec_decode_num_accepted_tokens_total": 9.0,
    "spec_decode_num_drafts_total": 4.0,
}
MESSAGE = "The server of vanilla counted .* drafts .*: it must run without speculation"


def drafting_from(first_request: int) -> Stub:
    """A server that drafts from this request on. Only its counters show that."""
    stub = Stub("plain", counters=dict(NO_DRAFTS))

    def answer(prompt: Sequence[int]) -> Sequence[int]:
        if len(stub.requests) > first_request:
            stub.accepted_per_step = (0, 1)
        return (5, 6, 7, 2)

    stub.answer = answer
    return stub


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_run_stops_after_a_block_in_which_the_baseline_drafts(concurrency: int) -> None:
    stub, log = drafting_from(4), Kept()
    with pytest.raises(UserError, match=MESSAGE):
        run(
            {"vanilla": stub, "sps": Stub()},
            protocol=completions(is_chat=True),
            concurrency=(concurrency,),
            log=log,
        )
    assert log.records, "the block is kept, so that a report can say why it is not a baseline"


def test_another_label_may_draft_and_a_vanilla_that_never_drafts_may_stay() -> None:
    honest = Stub("plain", counters=dict(NO_DRAFTS))
    done = run({"vanilla": honest, "sps": drafting_from(0)}, protocol=completions(is_chat=True))
    assert all(record.is_ok for record in done.records)


@pytest.mark.parametrize("engine", ["vllm", "llamacpp", "sglang", "plain"])
@pytest.mark.parametrize("label", ["vanilla", "eagle3"])
def test_swapped_addresses_are_refused_before_a_run(engine: str, label: str) -> None:
    drafting = Stub(engine, accepted_per_step=(1, 0))
    if engine == "plain":  # answers of this engine do not show drafts
        drafting.counters = dict(NO_DRAFTS)
    with serving(drafting):
        spec = RunSpec("tiny", backend="server", urls=(drafting.root,), labels=(label,))
        if label != "vanilla":
            assert make_running_setup(spec, is_offline=True).servers[label].num_drafts > 0
            return
        with pytest.raises(UserError, match=MESSAGE) as caught:
            make_running_setup(spec, is_offline=True)
    assert "swapped" in caught.value.hint


def test_a_server_without_counts_is_taken() -> None:
    with serving(Stub("plain")) as silent:
        spec = RunSpec("tiny", backend="server", urls=(silent.root,), labels=("vanilla",))
        assert make_running_setup(spec, is_offline=True).servers["vanilla"].num_drafts == 0
