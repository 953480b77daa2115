"""Checks of what a spec names, before torch is imported: a misspelt name costs no time.

Nothing is downloaded, and no method's code runs. Rules between options, plug-ins that declare
their options elsewhere and GPUs are checked later.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specbench.measure.methods import BASELINE, datastore_file, no_weights
from specbench.measure.settings import read_settings
from specbench.measure.spec import AUTO, PAPER, RunSpec
from specbench.methods import described
from specbench.models.cards import DraftWeights, ModelCard, find_model, pick_dtype
from specbench.models.chat import check_own_template, check_template
from specbench.models.checkpoints import check_checkpoint
from specbench.models.hub import local_folder
from specbench.registry import GROUPS, MethodChoice, check_choice, expand_groups, parse_choices


def check_names(spec: RunSpec) -> None:
    """Check names, options, folders, datastores and templates, in this order.

    Raises:
        UserError: a name is unknown, a value is wrong, or a file is missing or damaged.
    """
    card = find_model(spec.model)
    if spec.backend:
        return
    if spec.settings not in (AUTO, PAPER):
        read_settings(spec.settings, card.name)
    for choice in parse_choices(spec.methods):
        if choice.name not in GROUPS:
            check_choice(choice)
        elif choice.given:
            expand_groups([str(choice)])  # says why not
    if spec.weights != "stand-in":
        _check_files(card, [*parse_choices(spec.methods)])
    pick_dtype(card, spec.dtype, "cpu")
    check_template(spec.template)
    if Path(card.repo).is_dir():
        check_own_template(spec.template, card, Path(card.repo))


def _check_files(card: ModelCard, choices: Sequence[MethodChoice]) -> None:
    """Check the model's folder and the files that methods are given, as far as they are local."""
    if Path(card.repo).is_dir():
        check_checkpoint(Path(card.repo), what=f"Model {card.name}")
    lacking = []
    for name, given in ((one.name, one.given) for one in choices if one.name != BASELINE):
        own = about.weights if (about := described().get(name)) else None
        what = f"The {name} checkpoint"
        if "weights" in given and (folder := local_folder(given["weights"], what=what)):
            is_model = DraftWeights(own or name, given["weights"]).is_model
            check_checkpoint(folder, what=what, needs_tokenizer=is_model)
        datastore_file(given.get("datastore", ""))
        if own and not {"weights", "datastore"} & {*given} and not card.weights_of(name):
            lacking.append(name)
    if lacking and len(lacking) == len([one for one in choices if one.name != BASELINE]):
        raise no_weights(card, lacking)
