"""Methods from other packages are found, listed and run, or listed as broken.

`specbench init method NAME` writes a package with a working method.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from specbench.log.store import read_run
from tests.cli.conftest import Specbench
from tests.packaging.shell import output, pip_install
from tests.support.paths import ROOT
from tests.support.texts import assert_in


def claim(folder: Path, package: str, entry_point: str) -> None:
    """Install a package with one entry point, as pip would."""
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[specbench.methods]\n{entry_point}\n")


@pytest.mark.slow
def test_an_installed_plugin_passes_the_contract_tests(
    model: Path,
    prompt_file: Path,
    specbench: Specbench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert specbench("init", "method", "bigram", "--out", "source").code == 0
    plugin = tmp_path / "installed"
    pip_install("--target", plugin, tmp_path / "source", cwd=tmp_path)
    suite = ("-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-k", "bigram")
    command: list[str | Path] = [sys.executable, *suite, ROOT / "tests/audit/test_every_method.py"]
    passed = output(command, tmp_path, path=[ROOT, plugin], timeout=300)
    (count,) = re.findall(r"(\d+) passed", passed)
    assert int(count) >= 3
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(plugin)
    listed = specbench("list", "methods").out.splitlines()
    (line,) = [line for line in listed if line.startswith("bigram ")]
    assert "latest successor of each token" in line and "specbench-bigram" in line
    call = ("run", "--method", "bigram:num_tokens=3", "--model", model, "--prompts", prompt_file)
    options = "--template none --max-new-tokens 8 --device cpu --output run"
    specbench(*call, *options.split(), code=0)
    records = read_run(Path("run")).records
    answers = [{r.key.request: r.token_ids for r in records if r.key.method == method}
               for method in ("vanilla", "bigram:num_tokens=3")]  # fmt: skip
    assert answers[0] == answers[1] and len(answers[0]) == 3


def test_a_broken_plugin_is_listed_with_the_cause(
    specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(tmp_path / "site", "specbench-broken", "broken = specbench_broken:METHOD")
    (tmp_path / "site" / "specbench_broken.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    listed = " ".join(specbench("list", "methods").out.partition("\nbroken ")[2].split())
    assert "BROKEN" in listed and "no_such_library" in listed
    done = specbench("run", "--method", "broken", code=2)
    assert "No module named 'no_such_library'" in done.err
    assert "Traceback" not in done.err
    assert not Path("results").exists()


def test_a_plugin_cannot_take_the_name_of_an_existing_method(
    tmp_path: Path, specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(tmp_path / "site", "specbench-other", "pld = specbench_other:METHOD")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert "registered more than once" in specbench("show", "pld", code=2).err


def test_a_new_method_has_its_name_everywhere(specbench: Specbench, tmp_path: Path) -> None:
    said = specbench("init", "method", "my_idea", code=0)
    folder = tmp_path / "specbench-my-idea"
    code = (folder / "specbench_my_idea.py").read_text()
    assert_in(
        code,
        "class MyIdea(Drafter)",
        "build=MyIdea,",
        'name="my_idea"',
        'title="My Idea"',
    )
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "specbench-my-idea"
    points = project["project"]["entry-points"]["specbench.methods"]
    assert points == {"my_idea": "specbench_my_idea:METHOD"}
    compile(code, "specbench_my_idea.py", "exec")
    assert "bigram" not in code.lower()
    assert "Run it: specbench run --method my_idea" in said.out
