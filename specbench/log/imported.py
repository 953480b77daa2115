"""The part of an imported run's header that describes the other tool's files."""

from typing import Literal

from msgspec import Struct

from specbench.log.machine import UNKNOWN, Cpu, Environment, Torch

Average = Literal["totals", "rates"]
"""A publisher's average of speeds:

- totals: all tokens / all seconds,
- rates: the mean tokens/s over questions / the baseline's mean.
"""
OUR_RULE = "tokens: all of the answer, from their ids; steps: forwards after the prefill"
"""The counting rule of runs that specbench measured."""
UNKNOWN_MACHINE = Environment(
    specbench=UNKNOWN,
    git=None,
    python=UNKNOWN,
    os=UNKNOWN,
    cpu=Cpu(UNKNOWN, None, None, None, 0),
    gpus=(),
    torch=Torch(UNKNOWN, None, (), 0, UNKNOWN),
    transformers=None,
)
"""The machine of an imported run, since no file names it."""
UNTOLD = (
    *("environment.*", "hardware", "num_threads", "threads.*", "gpu.*", "kernels.*"),
    *("execution.*", "servers.*", "methods.*", "prompts.*", "model.files.*", "model.dtype"),
    *("model.revision", "model.quantization", "model.is_stand_in", "model.template_sha256"),
)
"""Patterns for the paths of header fields that the files of other tools never have."""


class ImportedFile(Struct, frozen=True, omit_defaults=True):
    """A file that answers were read from."""

    method: str
    """Method that gave the answers."""
    name: str
    """Name of the file without folders."""
    sha256: str
    """Hash of the file."""
    bytes: int
    """Size of the file."""
    format: str
    """Format, recognised by the content of the file."""
    tool: str
    """Tool that wrote the file."""
    version: str = UNKNOWN
    """Version of the tool. Absent if unknown."""


class ImportedFigure(Struct, frozen=True, omit_defaults=True):
    """A number computed from the files by a named rule."""

    method: str
    """Method of the number."""
    name: str
    """Name of the number: speedup, MAT, tokens/s, or a name that the tool uses."""
    value: float
    """The number."""
    rule: str
    """Arithmetic, in words."""
    counting: str = ""
    """Counting rule for the baseline's tokens, if the number depends on it."""
    unit: str = ""
    """Unit, which is x for a speedup."""
    printed: float | None = None
    """The number that the file has. Absent if it has none."""

    @property
    def rule_text(self) -> str:
        """The arithmetic, and the counting rule for the baseline's tokens, in words."""
        counting = f", with {self.counting} as the baseline's tokens" if self.counting else ""
        return f"{self.rule}{counting}"

    @property
    def text(self) -> str:
        """The method, the name, the number and the rule in words."""
        unit = self.unit if self.unit in ("", "x") else f" {self.unit}"
        rule = self.rule_text
        if self.printed is not None:
            rule += f", {self.printed:,.3f} in the file"
        return f"{self.method}: {self.name} {self.value:,.3f}{unit} by {rule}"


class ImportedHeader(Struct, frozen=True, omit_defaults=True):
    """The source of an imported run: the files, and the publisher's rules and numbers."""

    files: tuple[ImportedFile, ...]
    """Imported files, in the order of the command."""
    counting: dict[str, str]
    """Counting rule by method."""
    arithmetic: str
    """Arithmetic of the files' publisher."""
    average: Average = "totals"
    """The publisher's average of speeds. Absent for totals."""
    told: tuple[str, ...] = ()
    """Options of the run that the files or the user gave. The others are unknown."""
    given: dict[str, str] = {}
    """Facts that the user gave, by the option's name."""
    figures: tuple[ImportedFigure, ...] = ()
    """Numbers computed by the publisher's rules."""
    oddities: tuple[str, ...] = ()
    """Oddities in the files, with the place and the treatment of each."""
    findings: tuple[str, ...] = ()
    """Sentences about counting rules and budgets that the files reveal."""
    lacks: tuple[str, ...] = ()
    """Facts that the files lack."""

    @property
    def tools(self) -> str:
        """The tools with their versions, in words."""
        names = [f"{file.tool}, version {file.version}" for file in self.files]
        return "; ".join(dict.fromkeys(names))

    @property
    def counting_text(self) -> str:
        """The counting rules of all methods, without duplicates."""
        return "; ".join(dict.fromkeys(self.counting.values()))

    def tells(self, option: str) -> bool:
        """True if the files or the user give the value of this option of a run."""
        return option in self.told

    @property
    def tells_load(self) -> bool:
        """True if the number of requests at once or per second is known."""
        return self.tells("concurrency") or self.tells("request_rates")


Refused = Literal["merged", "pooled", "resumed", "audited"]
"""Actions that an imported run does not allow."""
