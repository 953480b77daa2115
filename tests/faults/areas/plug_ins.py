"""Attacks with plug-ins that fail, hang or exit in any call. The other methods still run."""

import sys
from pathlib import Path
from random import Random
from unittest.mock import patch

from specbench import registry
from specbench.measure.spec import RunSpec
from specbench.registry import lookup
from specbench.report.build import make_report
from specbench.report.export.terminal import render
from tests.cli.test_plugin import claim
from tests.faults.program import model_folder, ran, specbench
from tests.support.checkpoint import write_prompts

TRIES = 200
NAME = "hostile"

RAISED = (
    "TypeError('a')", "KeyError('a')", "MemoryError()", "SystemExit(0)", "SystemExit('gone')",
    "RecursionError()", "AssertionError()", "ValueError('\\x1b[31m\\n::error::a')",
    "OSError(28, 'full')", "StopIteration()", "BaseException('a')", "GeneratorExit()",
)  # fmt: skip
IMPORTS = (
    "raise {0}", "while True:\n  pass", "import time; time.sleep(99)", "import sys; sys.exit(3)",
    "while True:\n  try:\n    import time; time.sleep(99)\n  except Exception: pass",
    "import {{", "import no_such_library", "\0", "METHOD = None", "METHOD = METHOD.build",
    "del METHOD\ndef __getattr__(name): raise {0}",
)  # fmt: skip
METHODS = (
    "name='vanilla'", "name=None", "title=3", "summary=b''", "build=None", "options=int",
    "options=None", "options=Unencodable", "options=Failing", "options=Required",
)  # fmt: skip
CALLS = ("__init__", "needs", "start", "propose", "observe", "trees_to_record", "capture_graphs")
RETURNED = (
    "None", "3", "'tree'", "[]", "state", "state.chain", "state.chain([10**6])",
    "state.chain([-1])", "DraftTree.chain(torch.tensor([0, 5]))",
    "replace(state.chain([5]), num_verify=3)",
    "DraftTree.star(4, 'cpu')",
)  # fmt: skip
RULES = (
    "chosen[2] += 10**6", "chosen[2] = -7", "chosen[0, 0] = 0; chosen[0, 1] = 1",
    "chosen[0] = torch.tensor([1, 0, 1])", "chosen[0] = 1; chosen[1] += 1", "chosen[0] = 0",
    "chosen = chosen[:2]", "chosen = chosen.float()", "chosen = None", "chosen = logits",
)  # fmt: skip

SOURCE = '''
import torch
from dataclasses import dataclass, replace, field
from specbench.engine.accept import lossless
from specbench.engine.drafter import Drafter, Method
from specbench.engine.tree import DraftTree

@dataclass(frozen=True, slots=True)
class Options:
    """No options."""

@dataclass(frozen=True, slots=True)
class Unencodable:
    kept: object = object()

@dataclass(frozen=True, slots=True)
class Failing:
    made: int = field(default_factory=lambda: 1 / 0)

@dataclass(frozen=True, slots=True)
class Required:
    needed: int

class Hostile(Drafter):
    def __init__(self, options, context): pass
    def propose(self, state): return state.chain([5, 6])
{body}

METHOD = Method("hostile", "Hostile", "fails", "none", Options, Hostile)
{end}
'''
RULE = """
    @staticmethod
    def rule(tree, logits, sampler):
        chosen = lossless(tree, logits, sampler)
        if tree.num_nodes > 1: {}
        return chosen
"""


def attack(random: Random, folder: Path) -> None:
    raised = random.choice(RAISED)
    is_import = random.random() < 0.4
    body = end = ""
    if is_import:
        change = random.choice([*IMPORTS, *(f"METHOD = replace(METHOD, {m})" for m in METHODS)])
        end = change.format(raised)
    elif random.random() < 0.3:
        body = f"    def propose(self, state): return {random.choice(RETURNED)}"
    elif random.random() < 0.3:
        body = RULE.format(random.choice(RULES))
    else:
        call = random.choice(CALLS)
        decorator = "    @property\n" if call == "needs" else ""
        body = f"{decorator}    def {call}(*given): raise {raised}"
    for name in registry.names():  # imports the others before the short time limit applies
        registry.get(name)
    claim(site := folder / "site", NAME, f"{NAME} = specbench_hostile:METHOD")
    (site / "specbench_hostile.py").write_text(SOURCE.format(body=body, end=end))
    sys.modules.pop("specbench_hostile", None)
    prompts = write_prompts(folder / "two.jsonl", ["ab ab ab"], ["c d"])
    spec = RunSpec(str(model_folder()), prompts=str(prompts), template="none", max_new_tokens=6,
                   device="cpu")  # fmt: skip
    path = patch.object(sys, "path", [str(site), *sys.path])
    with path, patch.object(lookup, "IMPORT_LIMIT_S", 1.0):
        listed = specbench("list", "methods", folder=folder)
        assert listed.code == 0 and "pld" in listed.out, listed
        assert ("BROKEN" in listed.out) == is_import, listed.out
        assert "\x1b" not in listed.out
        specbench("show", NAME, folder=folder)
        stored = ran(spec, folder)
    for method in ("vanilla", "pld", "lookahead"):
        assert [record.is_ok for record in stored.records if record.key.method == method] == [
            True
        ] * 2
    if is_import:
        warnings = " ".join(stored.header.warnings)
        assert f"{NAME} was not run" in warnings and f"{NAME!r} is broken" in warnings, warnings
    records = [record for record in stored.records if record.key.method == NAME]
    assert len(records) == (0 if is_import else 2)
    assert all(record.is_ok or record.error for record in records)
    if body and "trees_to_record" not in body and "capture_graphs" not in body:
        assert not any(record.is_ok for record in records), "the fault was not noticed"
    assert "Hostile" in render(make_report(stored)) or is_import
