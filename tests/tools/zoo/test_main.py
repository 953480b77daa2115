"""`python -m tools.zoo`: the README's commands, and jobs run to their end."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from tests.packaging.shell import ROOT
from tools.zoo.__main__ import JOBS, main, parser

README = ROOT / "tools" / "zoo" / "README.md"


def test_the_readme_has_a_command_for_every_job_and_no_other() -> None:
    text = README.read_text(encoding="utf-8")
    commands = re.findall(r"python -m tools\.zoo ([^`]+)`", text)
    jobs = {parser().parse_args(shlex.split(command)).job for command in commands}
    assert jobs | {"hydra", "eagle", "eagle3"} == set(JOBS)
    assert {"hydra", "eagle", "eagle3"} <= set(re.findall(r"`(\w+)`", text))


@pytest.mark.slow
@pytest.mark.parametrize("job", ["sps", "medusa"])
def test_a_training_job_writes_weights_and_a_log(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    words = [job, "--out", out, "--work", work, "--steps", "1", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["zoo", *map(str, words)])
    main()
    if job == "sps":
        assert AutoModelForCausalLM.from_pretrained(out).config.hidden_size == 64
        assert (work / "sps" / "distilled" / "log.jsonl").is_file()
    else:
        assert (out / "medusa_lm_head.pt").is_file()
        assert (work / "medusa" / "log.jsonl").is_file()
