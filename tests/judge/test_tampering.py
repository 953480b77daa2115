"""Kinds of tampering with a stored run.

`check RUN` finds them, finds them with the run's audit, or cannot know of them.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from specbench.judge.files import check_files
from specbench.log.audit import AuditTest, MethodAudit, records_hash, write_audit
from tests.judge.making import EOS, rewrite, setting, store
from tests.support.audits import stored_audit
from tests.support.headers import BASE, merged
from tests.support.paths import ROOT

Lines = list[dict[str, Any]]


def swapped(lines: Lines) -> None:
    lines[0], lines[1] = lines[1], lines[0]


def scaled(*names: str, factor: float = 0.5) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        for line in lines:
            if line["method"] == "pld":
                for name in names:
                    line[name] *= factor

    return change


PHASES = {"draft_s": 0.2, "verify_s": 0.2, "commit_s": 0, "host_s": 0}
WEIGHTS = {"revision": None, "files": {"b": {"bytes": 7, "sha256": "x"}}}
BLOCK = {
    "method": "pld", "temperature": 0.0, "task": "gsm8k", "repeat": 0, "duration_s": 1.0,
    "num_requests": 2, "num_tokens": 9,
}  # fmt: skip
UNHASHED = {"model": {"files": {"a": {"bytes": 1, "sha256": None}}}}
ENDED_EARLY = {
    **{name: BASE[name] for name in ("created", "environment")},
    "id": "first", "num_records": 4, "finished": "2026-11-20T11:00:00+00:00",
}  # fmt: skip
FOUND: dict[str, Any] = {
    "a line twice": lambda lines: lines.append(lines[1]),
    "a line removed": lambda lines: lines.pop(1),
    "all lines of a prompt removed": lambda lines: [lines.pop(), lines.pop()],
    "a method that the run does not have": setting(1, method="sps"),
    "a task that the run does not have": setting(1, task="alpaca"),
    "a temperature that the run does not have": setting(1, temperature=1.0),
    "a prompt that its file does not have": setting(0, sample_id="gsm8k/none"),
    "a pass beyond the run's": setting(1, repeat=3),
    "a turn without the previous turn": setting(1, turn=1),
    "more tokens counted than there are": setting(1, num_tokens=5),
    "fewer tokens counted than there are": setting(1, num_tokens=3),
    "an accept length changed": setting(1, accept_lengths=[2]),
    "an accept length of 0": setting(1, accept_lengths=[3, 0]),
    "more tokens of a step than its tree has": setting(1, num_nodes=[2]),
    "a tree added": setting(1, num_nodes=[3, 3]),
    "drafts in a line of vanilla": setting(0, accept_lengths=[3], num_nodes=[3]),
    "tokens beyond the budget": setting(0, token_ids=[7] * 9, num_tokens=9),
    "tokens after the end token": setting(0, token_ids=[7, EOS, 9, EOS]),
    "another stop reason": setting(0, stop_reason="length"),
    "no stop reason": setting(0, stop_reason=None),
    "a negative time": setting(0, prefill_s=-1.0),
    "a prefill of no time": setting(0, prefill_s=0.0),
    "steps of no time": setting(0, decode_s=0.0),
    "no time": setting(0, decode_s=None),
    "answers longer than the run": setting(0, decode_s=90.0),
    "a part of a time longer than the whole": setting(0, draft_prefill_s=0.5),
    "an outer clock that measured less": setting(0, outer_s=0.1),
    "no tokens in a prompt": setting(0, prompt_tokens=0),
    "another seed": setting(0, seed=1),
    "another length of a prompt": setting(0, prompt_tokens=10),
    "ends of tokens beyond the text": setting(0, token_ends=[1, 2, 3, 5]),
    "an unknown status": setting(0, status="fine"),
    "an error with an answer": setting(0, status="error", error="boom"),
    "a token id below 0": setting(0, token_ids=[-1, 8, 9, EOS]),
    "a date in the future": {"created": "2999-01-01T00:00:00+00:00"},
    "an end before the start": {"finished": "2026-11-20T11:00:00+00:00"},
    "a malformed date": {"finished": "yesterday"},
    "a hash of weights removed": UNHASHED,
    "another limit of prompts": {"spec": {"values": {"limit": 1}}},
    "prompts left out without a limit": {"spec": {"values": {"limit": None}}},
    "fewer passes than the run has": {"spec": {"values": {"repeats": 3}}},
}
"""Changes of lines or of the header that the records contradict."""
MORE: dict[str, Any] = {
    "phases longer than the steps": setting(0, phases=PHASES),
    "a stop before the budget": setting(0, stop_reason="budget"),
    "a line less than the header says": lambda lines: lines.pop(1),
    "a part of a merged run that ended before its start": {"origins": [ENDED_EARLY]},
    "weights of a head without a hash": {"methods": {"pld": {"weights": WEIGHTS}}},
    "a block that counts other tokens": {"blocks": [BLOCK]},
}
"""Further faults that are found, without a row of their own in SECURITY.md."""
WORDS = {
    "a line twice": "is in line 2 already",
    "a line removed": "pld lacks 1 of the 2 requests that",
    "all lines of a prompt removed": "gsm8k has records for 1 of its 2 prompts",
    "a prompt that its file does not have": "no prompt",
    "tokens after the end token": "continues after",
    "another stop reason": "but its stop_reason is length",
    "no stop reason": "it has no stop_reason",
    "a prefill of no time": "but reading a prompt takes time",
    "steps of no time": "decode_s is 0, but it has steps",
    "answers longer than the run": "but the whole run only 60 s",
    "a part of a time longer than the whole": "0.5 s, more",
    "an outer clock that measured less": "outer_s is less than prefill",
    "no tokens in a prompt": "prompt_tokens is 0",
    "another seed": "seed 1 does not follow from the run's seed, 5",
    "another length of a prompt": "has 9 tokens, but 10 in others",
    "ends of tokens beyond the text": "do not match",
    "an end before the start": "before it began",
    "a malformed date": "is not a time in ISO 8601",
    "a hash of weights removed": "The model: the file a has no sha256",
    "another limit of prompts": "choose from gsm8k.jsonl",
    "prompts left out without a limit": "prompts, but the run has no limit",
    "fewer passes than the run has": "The run has 3 passes, but records for 1",
    "phases longer than the steps": "0.4 s, more than decode_s",
    "a stop before the budget": "at 4 tokens of a budget",
    "a line less than the header says": "but has 3 of 4 records",
    "a part of a merged run that ended before its start": (
        "The run first ended at 2026-11-20T11:00:00+00:00, before it began at 2026-11-20T12"
    ),
    "weights of a head without a hash": "pld: the file b has no sha256",
    "a block that counts other tokens": "counts 2 requests and 9 tokens, its records 2 and 8",
}
"""Words of the messages about these faults. The tests of `log.store` check the other messages."""
WITH_AUDIT: dict[str, Any] = {
    "times of a method halved": scaled("prefill_s", "decode_s"),
    "one time changed by a nanosecond": scaled("decode_s", factor=1 - 1e-9),
    "vanilla slowed": setting(0, decode_s=0.5),
    "tokens of all methods changed": lambda lines: [
        line.update(token_ids=[7, 8, 6, EOS]) for line in lines
    ],
    "larger trees": setting(1, num_nodes=[9]),
    "an answer other than the audit's": setting(1, token_ids=[7, 8, 6, EOS]),
    "text changed": setting(0, text="dcba"),
    "lines in another order": swapped,
    "a pause removed or added": setting(0, is_paused=True),
    "the outer clock's time changed": setting(0, outer_s=0.76),
}
UNKNOWN: dict[str, Any] = {
    "another machine": {"environment": {"cpu": {"model": "Faster CPU"}}},
    "another version of a library": {"environment": {"torch": {"version": "9.9"}}},
    "another hash of weights": {"model": {"files": {"a": {"bytes": 1, "sha256": "cd" * 32}}}},
}


def audited(folder: Path) -> Path:
    """The run with an audit that found all greedy answers identical, and has the hash."""
    same = AuditTest("answers", "equal to vanilla's", 2, 0, "answers")
    audit = stored_audit(MethodAudit("pld", 0.0, 0.0, "identical", tests=(same,)), num_records=4)
    write_audit(folder, structs.replace(audit, records_sha256=records_hash(folder)))
    return folder


def verdict(folder: Path) -> str:
    checked = check_files(folder)
    if not checked.is_passed:
        return "found"
    is_void = any("judged other records" in text for text in checked.about["unchecked"])
    return "found with the audit" if is_void else "cannot be known"


CHANGES = FOUND | MORE | WITH_AUDIT | UNKNOWN


def tamper(folder: Path, name: str) -> None:
    """Make the change of this name to a stored run."""
    change = CHANGES[name]
    if callable(change):
        rewrite(folder, change)
    else:
        file = folder / "run.json"
        header = merged(json.loads(file.read_text()), change)
        file.write_text(json.dumps(header))


def expected_verdict(name: str) -> str:
    if name in WITH_AUDIT:
        return "found with the audit"
    return "cannot be known" if name in UNKNOWN else "found"


@pytest.mark.parametrize("name", CHANGES)
def test_each_kind_of_tampering_is_found_as_the_table_says(name: str, tmp_path: Path) -> None:
    folder = audited(store(tmp_path / "run"))
    assert verdict(folder) == "cannot be known"
    tamper(folder, name)
    assert verdict(folder) == expected_verdict(name)
    if name in WORDS:
        faults = [check.text for check in check_files(folder).failures]
        assert any(WORDS[name] in text for text in faults), faults


def test_an_answer_that_contradicts_an_audit_without_a_hash_is_found(tmp_path: Path) -> None:
    folder = store(tmp_path / "run")
    write_audit(folder, stored_audit(MethodAudit("pld", 0.0, 0.0, "identical"), num_records=4))
    assert verdict(folder) == "cannot be known"
    (fault,) = check_files(rewrite(folder, setting(1, token_ids=[7, 8, 6, EOS]))).failures
    assert "pld: 1 greedy answers differ from vanilla's" in fault.text


def test_records_and_audit_changed_together_cannot_be_known(tmp_path: Path) -> None:
    folder = rewrite(store(tmp_path / "run"), scaled("decode_s"))
    assert verdict(audited(folder)) == "cannot be known"


def test_the_page_on_security_lists_all_55_kinds() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    kind = "found|found with the audit|cannot be known"
    rows = re.findall(rf"^\| ([^|]+) \| ({kind}) \|$", page, re.MULTILINE)
    kinds = {name: expected_verdict(name) for name in CHANGES if name not in MORE}
    kinds["records and audit changed together"] = "cannot be known"
    assert dict(rows) == kinds
    assert len(rows) == 55
