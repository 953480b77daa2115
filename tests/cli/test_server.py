"""`specbench run --backend server`: from the command line to the table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from transformers import AutoModelForCausalLM

from specbench.audit.model import RunModel
from specbench.log.merge import merged
from specbench.log.store import read_run
from specbench.zoo import TINY
from tests.cli.conftest import Said, Specbench, cut
from tests.support.checkpoint import write_prompts
from tests.support.models import generated
from tests.support.stub_server import Stub, chunks_of, serving
from tests.support.tiny import CODEC

ANSWER = (40, 41, 42, 43, 44)
EOS = min(CODEC.eos_ids)
WHOLE: dict[str, Any] = {"answer": lambda _: (*ANSWER, EOS), "eos": EOS}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "mine.jsonl", *(["one two three", "and four"] for _ in "ab"))


@pytest.fixture
def servers() -> Iterator[tuple[Stub, Stub]]:
    speculating = Stub(**WHOLE, accepted_per_step=(2, 1))
    with serving(Stub(**WHOLE)) as plain, serving(speculating) as eagle3:
        yield plain, eagle3


def run(specbench: Specbench, servers: Sequence[Stub], *more: object) -> Said:
    named = [
        word
        for label, server in zip(("vanilla", "eagle3"), servers, strict=False)
        for word in ("--url", f"{server.root}/v1", "--label", label)
    ]
    call = ("run", "--backend", "server", *named, "--output", "out", "--quiet")
    return specbench(*call, *more)


def test_a_run_on_two_servers_has_a_table_and_can_be_resumed(
    specbench: Specbench, servers: tuple[Stub, Stub], prompts: Path
) -> None:
    dry = run(specbench, servers, "--prompts", prompts, "--dry-run")
    assert dry.code == 0 and ["run-1", "2", "8"] in [
        line.split()[:3] for line in dry.out.splitlines()
    ]
    said = run(specbench, servers, "--prompts", prompts)
    assert (said.code, said.err) == (0, "")
    assert "EAGLE-3" in said.out and "vLLM 0.32.0" in said.out
    stored = read_run(Path("out"))
    assert len(stored.records) == 8
    assert {record.accept_lengths for record in stored.records} == {(1,) * 5, (3, 2)}
    header = stored.header
    assert header.servers["eagle3"].url == servers[1].root
    assert header.servers["eagle3"].protocol == "completions"
    assert header.spec.values.concurrency == (1,)
    assert len(header.blocks) == 2
    assert "2.50" in said.out
    cut(Path("out"), 5)
    assert run(specbench, servers, "--prompts", prompts, "--resume").code == 0
    resumed = read_run(Path("out"))
    assert {record.key for record in resumed.records} == {record.key for record in stored.records}
    assert (len(resumed.records), len(resumed.header.blocks)) == (8, 3)  # one more, of EAGLE-3


KEY = "sk-hunter22-hunter22"


@dataclass
class Echo(Stub):
    """A server that sends the key back in the place `where`."""

    where: str = ""

    def _say(self, values: Mapping[str, Any]) -> Any:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response({"version": f"1 {request.headers['Authorization']}"})

        return answer

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        key = request.headers["Authorization"]
        if self.where == "version" or not self.requests:  # the first one is the probe
            return await super()._complete(request)
        if self.where == "refusal":
            message = {"error": {"message": f"{'x' * 170} wrong key: {key}"}}
            return web.json_response(message, status=400)
        text = {
            "error": f'{{"error": {{"message": "{key}"}}}}',
            "garbage": f'{{"choices": 1, "{"x" * 80}": "{key}"}}',
            "end": f'{{"choices": [{{"text": "a", "finish_reason": "{key}"}}]}}',
            "answer": f'{{"choices": [{{"text": "{key}", "finish_reason": "stop"}}]}}',
        }[self.where]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"data: {text}\n\n".encode())
        return response


@pytest.mark.parametrize("where", ["refusal", "error", "garbage", "end", "answer", "version"])
def test_a_key_that_a_server_sends_back_is_in_no_file_or_message(
    specbench: Specbench, prompts: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("SPECBENCH_API_KEY", KEY)
    engine = "vllm" if where == "version" else "another"  # an engine that sends no version
    with serving(Echo(engine, **WHOLE, where=where)) as server:
        said = run(specbench, [server], "--prompts", prompts)
    assert said.code == (where != "version")
    files = [path for path in Path("out").rglob("*") if path.is_file()]
    shown = [path.read_bytes() for path in files] + [said.out.encode(), said.err.encode()]
    assert files and not any(b"hunter22" in text for text in shown)
    leaked = b"the key back" if where == "answer" else b"***"
    assert any(leaked in text for text in shown)


def test_a_password_in_the_address_of_an_older_run_is_not_shown(
    specbench: Specbench, servers: tuple[Stub, Stub], prompts: Path
) -> None:
    assert run(specbench, servers, "--prompts", prompts).code == 0
    header = Path("out/run.json")
    header.write_text(header.read_text().replace("http://", "http://me:hunter22@"))
    (Path("out") / "report").rename("before")
    for call in (("report", "out", "--out", "new"), ("show", "out"), ("site", "out", "--out", "p")):
        said = specbench(*call, code=0)
        assert "hunter22" not in said.out + said.err
    files = [path for place in ("new", "p") for path in Path(place).rglob("*") if path.is_file()]
    assert files and not any(b"hunter22" in path.read_bytes() for path in files)


@dataclass
class AtOnce(Stub):
    """A server that sends all tokens at once."""

    async def _stream(
        self,
        request: web.Request,
        body: Mapping[str, Any],
        fault: str,
        number: int,
    ) -> web.StreamResponse:
        chunks = chunks_of(self, request.path, body["prompt"], (*ANSWER, EOS), is_eos=True)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write("".join(f"data: {chunk}\n\n" for chunk in chunks).encode())
        return response


def test_one_server_that_sends_all_tokens_at_once_has_a_report_and_a_site(
    specbench: Specbench, prompts: Path
) -> None:
    with serving(AtOnce(eos=EOS)) as server:
        call = ("run", "--backend", "server", "--url", server.root, "--prompts", prompts)
        said = specbench(*call, "--output", "out")
    assert said.code == 0, said.err
    assert "No server is labelled vanilla" in said.out
    stored = read_run(Path("out")).records
    assert [(record.key.method, record.decode_s) for record in stored] == [("server", 0.0)] * 4
    for command in ("report", "site"):
        assert specbench(command, "out", "--out", command).code == 0
    cut(Path("out"), 0)  # remove all answers
    assert specbench("site", "out", "--out", "empty").code == 0


def test_an_engine_that_dies_fails_alone(specbench: Specbench, prompts: Path) -> None:
    fake = Path(__file__).parents[1] / "support" / "fake_engine.py"
    call = ("run", "--engine", "vllm", "--engine-command", f"{sys.executable} {fake}")
    methods = ("--method", "ngram,eagle3:num_tokens=3,sps", "--prompts", prompts, "--quiet")
    said = specbench(
        *call, *methods, "--engine-args", f"--eos {EOS} --fail eagle3", "--output", "out"
    )
    stored = read_run(Path("out"))
    assert said.code == 1
    failed = {record.key.method: record.error for record in stored.records if not record.is_ok}
    assert [*failed] == ["eagle3:num_tokens=3"]
    assert "RuntimeError: no memory left" in (failed["eagle3:num_tokens=3"] or "")
    done = {record.key.method for record in stored.records if record.is_ok}
    assert done == {"vanilla", "ngram", "sps"}
    assert stored.header.servers["sps"].software == "vLLM 0.32.0"
    assert "serve" in stored.header.servers["sps"].command
    assert "starting draft_model" in Path("out/engines/sps.log").read_text()
    assert "N-gram" in said.out and "SpS" in said.out


def test_a_dry_run_prints_the_commands_of_engines(specbench: Specbench, prompts: Path) -> None:
    said = specbench(
        *("run", "--engine", "vllm", "--engine-command", sys.executable, "--method", "ngram"),
        *("--prompts", prompts, "--dry-run"),
    )
    assert (said.code, Path("results").exists()) == (0, False)
    lines = dict(line.split(": ", 1) for line in said.out.splitlines() if "serve" in line)
    assert [*lines] == ["vanilla", "ngram"]
    assert '"method": "ngram"' in lines["ngram"] and "speculative" not in lines["vanilla"]


def test_an_audit_compares_servers_with_each_other_and_the_model(
    specbench: Specbench, prompts: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(str(TINY / "target"))

    def right(prompt: Sequence[int]) -> Sequence[int]:
        return generated(model, tuple(prompt), 4)

    def wrong(prompt: Sequence[int]) -> Sequence[int]:
        return (*right(prompt)[:2], 77, 78)

    good, bad = Stub(answer=right, eos=EOS), Stub(answer=wrong, eos=EOS)
    with serving(good), serving(bad):
        call = ("--prompts", prompts, "--max-new-tokens", 4, "--dtype", "float32")
        assert run(specbench, [good, bad], *call).code == 0
    said = specbench("audit", "out", code=1)
    rows = {line.split()[0]: line for line in said.out.splitlines() if " of 4" in line}
    assert "4 of 4" in rows["Vanilla"] and "identical" in rows["Vanilla"]
    assert "0 of 4" in rows["EAGLE-3"] and rows["EAGLE-3"].split()[-1] == "bug"


# The replies of the second run are longer. Its passes begin at number 1 in the merge.
def test_an_audit_of_merged_runs_has_the_replies_of_each_run(
    specbench: Specbench, prompts: Path
) -> None:
    stubs = [Stub(answer=lambda _: (40, EOS), eos=EOS), Stub(**WHOLE)]
    runs = []
    for number, stub in enumerate(stubs):
        with serving(stub):
            run(specbench, [stub], "--prompts", prompts)
        runs.append(read_run(Path("out").rename(f"run-{number}")))
    both = merged(runs)
    model = RunModel(both, has_methods=False)
    prompts_now = [model.prompt_ids(record) for record in both.records[4:]]
    assert sorted(prompts_now) == sorted(tuple(sent["prompt"]) for sent in stubs[1].requests[-4:])


def test_an_audit_compares_a_server_without_vanilla_with_the_model(
    specbench: Specbench, prompts: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(str(TINY / "target"))

    def right_at_first(prompt: Sequence[int]) -> Sequence[int]:
        answer = generated(model, tuple(prompt), 4)
        return answer if len(server.requests) < 5 else (*answer[:2], 77, 78)

    server = Stub(answer=right_at_first, eos=EOS)
    with serving(server):
        url = ("--url", server.root, "--label", "eagle3", "--prompts", prompts)
        call = ("run", "--backend", "server", *url, "--max-new-tokens", 4, "--dtype", "float32")
        assert specbench(*call, "--output", "out").code == 0
    said = specbench("audit", "out", code=1)
    (row,) = [line for line in said.out.splitlines() if " of 4" in line]
    assert row.startswith("EAGLE-3") and row.split()[-1] == "bug"
    assert 0 < int(row.split(" of 4")[0].split()[-1]) < 4, "some answers equal the model's"
    assert "not in the audit" not in said.out
