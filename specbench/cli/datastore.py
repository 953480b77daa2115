"""`specbench datastore`: make the datastores of `rest` and `sam`."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.help import CommandWithParts, Part
from specbench.cli.options import CORPUS, Call, TargetModel, quiet_libraries, say, takes
from specbench.log.options import options
from specbench.log.spec import SpecValues

commands = typer.Typer(
    cls=CommandWithParts,
    add_completion=False,
    help="Make a datastore for the methods rest and sam.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@commands.callback()
def _group() -> None:
    """Keep `build` a subcommand. Without a group, typer would make it the whole program."""


@commands.command(cls=Part)
@takes(*options(SpecValues, "template", "template_args"), *options(Call, "offline"))
def build(
    data: Annotated[Path, typer.Argument(metavar="FILE", help=CORPUS)],
    model: TargetModel,
    output: Annotated[Path, typer.Option(metavar="FILE", help="The datastore to write.")],
    values: dict[str, Any],
    call: Call,
) -> None:
    """Sort the tokens of a corpus into a datastore."""
    from specbench.errors import UserError
    from specbench.measure.spec import RunSpec
    from specbench.methods.shared.datastore import Datastore
    from specbench.models.chat import load_codec
    from specbench.models.hub import resolve_model
    from specbench.training.examples import encode, read_examples

    if output.exists():
        raise UserError(f"--output {output} exists.", "Name a new file.")
    if not output.parent.is_dir():
        raise UserError(f"--output {output}: its folder does not exist.", "Make it first.")
    left_out: Counter[str] = Counter()
    examples = read_examples(data, left_out)
    spec = RunSpec(model=model, **values)
    quiet_libraries()
    path = resolve_model(spec.card, offline=call.offline)
    codec = load_codec(path, spec.card, spec.template, spec.template_args)
    longest = 1 << 40  # no text is cut
    token_ids = [row.ids for row in encode(codec, examples, longest, 1.0, left_out)]
    if not token_ids:
        raise UserError(f"{data} holds no text of three tokens or more.", "Give more text.")
    Datastore.build(token_ids).save(output)
    for reason, num_left_out in left_out.items():
        say(f"Left out: {num_left_out} {reason}")
    num_tokens = sum(map(len, token_ids))
    say(
        f"Datastore: {output} ({len(token_ids):,} texts, {num_tokens:,} tokens)\n"
        f"Run it: specbench run --model {model} --method rest:datastore={output}",
        is_error=False,
    )
