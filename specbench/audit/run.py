"""The audit of a run: are its outputs lossless, and where not, why?

`greedy` looks at completions that differ at temperature 0; `white_box` tests logits, guesses,
tokens and rules at every temperature. The model is loaded only if there is something to look
at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from specbench.analysis.columns import BASELINE
from specbench.analysis.divergence import find_agreements
from specbench.analysis.records import make_table
from specbench.audit.greedy import agreement_with_ours, audit_greedy
from specbench.audit.model import RunModel
from specbench.audit.results import Audit
from specbench.audit.white_box import Effort, audit_methods, audit_servers, usable_records
from specbench.errors import UserError
from specbench.log.audit import MethodAudit
from specbench.log.run import Run

OpenModel: TypeAlias = Callable[[bool], RunModel]
"""Loads the run's model with all its methods, or (False) with vanilla alone."""


def audit(
    run: Run,
    open_model: OpenModel,
    *,
    is_recheck: bool,
    effort: Effort,
    say: Callable[[str], None],
) -> Audit:
    """Audit a run. With `is_recheck`, steps that differ are run again in the model's dtype.

    Raises:
        UserError: there is nothing to compare, or the model or its prompts are not the run's.
    """
    info, table = run.header, make_table(run.records)
    agreements = find_agreements(table, info.spec.values.history)
    records = usable_records(table) if effort.num_tokens else {}
    is_sampled = any(temperature > 0 for temperature in records)
    if not agreements and not is_sampled and not info.servers:
        raise UserError(
            f"Run {info.id} has nothing to audit: no method except vanilla finished a greedy "
            "sample that vanilla finished too, and none was sampled.",
            "Audit a run with vanilla and at least one other method.",
        )
    has_divergence = any(agreement.divergences for agreement in agreements.values())
    model = None
    if info.servers:
        say("Vanilla: the server's against the engine in this process.")
        model, is_recheck = open_model(False), False  # the methods are the servers'
        agreements = {BASELINE: agreement_with_ours(table, info, model), **agreements}
    elif has_divergence or records:
        model = open_model(is_recheck or bool(records))
    greedy = [
        audit_greedy(agreement, table, info, model=model, is_recheck=is_recheck, say=say)
        for agreement in agreements.values()
    ]
    methods: Sequence[MethodAudit] = ()
    if model and info.servers:
        methods = audit_servers(records, info, model, say)
    elif model and records:
        methods = audit_methods(records, info, model, effort, say)
    return Audit(
        run_id=info.id,
        dtype=info.model.dtype,
        recheck_dtype=model.dtype if model and is_recheck else None,
        greedy=tuple(greedy),
        methods=tuple(methods),
        device=model.device if model else "",
    )
