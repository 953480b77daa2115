"""The options of `specbench run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import complete
from specbench.cli.options import Many

Method = Annotated[
    Many,
    typer.Option(
        metavar="METHOD,...",
        help="Methods, such as pld,sps:num_tokens=4; or papers, or all [default: papers, "
        "training-free ones and plug-ins]",
        autocompletion=complete.methods,
    ),
]
Model = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="A known model, a folder or a Hub id.",
        autocompletion=complete.models,
    ),
]
Dataset = Annotated[
    Many,
    typer.Option(
        metavar="TASK,...",
        help="Tasks [default: the six of the papers]",
        autocompletion=complete.datasets,
    ),
]
Prompts = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        autocompletion=complete.choice("bundled", "paper", "hub"),
        help="bundled, paper, hub, or a file [default: bundled for tiny and stand-ins, else paper]",
        show_default=False,
    ),
]
PadTo = Annotated[
    Many,
    typer.Option(metavar="N,...", help="Cut prompts of N tokens from the text file --prompts."),
]
Limit = Annotated[int | None, typer.Option(metavar="N", help="Use the first N prompts of a task.")]
Sample = Annotated[
    int | None, typer.Option(metavar="N", help="Use N prompts of a task, drawn with the seed.")
]
Task = Annotated[Many, typer.Option(metavar="FILE.toml", help="Card of a task of your own.")]
Temperature = Annotated[
    Many, typer.Option(metavar="T,...", help="0 is greedy; several values are all run [default: 0]")
]
TopP = Annotated[float, typer.Option(metavar="P", help="Nucleus sampling at T > 0.")]
TopK = Annotated[
    int, typer.Option(metavar="K", help="Sample among the K most likely tokens; 0: off.")
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Tokens per answer [default: 128 for tiny and stand-ins, else 512]"
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Passes over all prompts [default: 3 for tiny and stand-ins, else 1]"
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of every random draw.")]
Dtype = Annotated[str, typer.Option(metavar="DTYPE", help="auto, float32, bfloat16 or float16.")]
Quantize = Annotated[
    str, typer.Option(metavar="FORMAT", help="int8 or int4: quantise the weights (torchao).")
]
History = Annotated[
    str,
    typer.Option(
        metavar="KIND", help="Earlier answers in a chat: vanilla's (shared) or the method's own."
    ),
]
Baseline = Annotated[bool, typer.Option(help="Run vanilla too, for speedups.")]
Output = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an unfinished run.")]
Force = Annotated[
    bool, typer.Option("--force", help="Resume on another machine or with other versions.")
]
Execution = Annotated[
    str, typer.Option(metavar="MODE", help="auto, eager, or graph: replay CUDA graphs.")
]
Trace = Annotated[bool, typer.Option("--trace", help="Keep the draft's confidence in every node.")]
CheckDrafts = Annotated[
    bool, typer.Option("--check-drafts", help="Check every draft and verdict against the contract.")
]
Phases = Annotated[
    bool, typer.Option("--phases", help="Time the phases of a step; reports no speedup.")
]
LogJson = Annotated[
    bool, typer.Option("--log-json", help="Write progress as JSON, one event per line.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the table only.")]
Runs = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="Whole runs, each in a process of its own, pooled."),
]
Apart = Annotated[
    float, typer.Option(metavar="S", min=0, help="Seconds between the end of a run and the next.")
]
UntilCi = Annotated[
    str,
    typer.Option(
        metavar="SHARE", help="Repeat until mean speedups have intervals of at most +/- SHARE."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would run and what it could show.")
]
