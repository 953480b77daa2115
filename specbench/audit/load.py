"""A registered method on a model, as the subject of the contract's checks."""

from __future__ import annotations

from specbench.audit.subject import Subject
from specbench.engine.drafter import BuildContext, Drafter
from specbench.errors import UserError
from specbench.measure.local.engine_load import load_model
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.plan import make_plan
from specbench.measure.requests import user
from specbench.measure.spec import RunSpec

NUM_PROMPTS = 4


def load_subject(name: str, model: str, *, is_offline: bool = False) -> tuple[Subject, bool]:
    """The subject on a model in float32 on the CPU; true if the method claims to be lossless.

    Its prompts are the shortest first ones of the tasks.

    Raises:
        UserError: there is no such method or model, or the model has no weights for the method.
    """
    spec = RunSpec(
        model=model,
        methods=(name,),
        limit=1,
        device="cpu",
        dtype="float32",
        is_baseline_run=False,
    )
    plan = make_plan(spec, is_offline=is_offline)
    setup = plan.setup
    assert isinstance(setup, EngineSetup)
    if setup.missing:
        raise UserError(
            f"{model} has no draft weights for {name}.",
            f"Give them, such as {name}:weights=DIR, or another --model.",
        )
    (own,) = setup.methods
    target = load_model(setup)
    turns = [prompt.turns[0] for prompts in plan.prompts.values() for prompt in prompts]
    prompts = sorted((setup.codec.render([user(text)]) for text in turns), key=len)

    def build() -> Drafter:
        return own.method.build(own.options, BuildContext(target, own.weights))

    return Subject(target, build, prompts[:NUM_PROMPTS]), own.method.is_lossless_with(own.options)
