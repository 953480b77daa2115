"""The options of `specbench run` for methods that servers run."""

from __future__ import annotations

from typing import Annotated

import typer

from specbench.cli import complete
from specbench.cli.options import Many

Backend = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="engine: in this process; server: over HTTP.",
        autocompletion=complete.choice("engine", "server"),
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Start this engine as the server of each method: vllm, sglang or llamacpp.",
        autocompletion=complete.choice("vllm", "sglang", "llamacpp"),
    ),
]
EngineCommand = Annotated[
    str, typer.Option(metavar="COMMAND", help="The engine's command, if it is not on the PATH.")
]
EngineArgs = Annotated[
    str, typer.Option(metavar="ARGS", help="More arguments for the engine, in quotes.")
]
Url = Annotated[
    Many, typer.Option(metavar="URL", help="Address of a running server; one for each --label.")
]
Label = Annotated[
    Many, typer.Option(metavar="NAME", help="Method of the server at --url; vanilla: the baseline.")
]
ServedModel = Annotated[
    str, typer.Option(metavar="NAME", help="The model's name at the server, if it differs.")
]
Concurrency = Annotated[
    Many, typer.Option(metavar="N,...", help="Requests that a server gets at once [default: 1]")
]
RequestRate = Annotated[
    Many, typer.Option(metavar="R,...", help="Requests per second to a server, at random times.")
]
Goodput = Annotated[
    str, typer.Option(metavar="LIMITS", help="Limits in ms of a good request: ttft:500,tpot:50")
]
RequestTimeout = Annotated[
    float | None, typer.Option(metavar="S", help="Time limit of a request [default: 600]")
]
