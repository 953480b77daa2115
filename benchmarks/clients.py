"""Compare clients' measurements with the exact delays and counts of the server that they measure.

    python -m benchmarks.clients --vllm PATH --guidellm PATH --aiperf PATH

The server sends the first token of an answer after 1.5 s and then a step of 1 to 5 tokens every
0.15 s. It counts drafts as vLLM does. specbench measures it with `run`. vLLM's `bench serve`,
guidellm and AIPerf send the same prompts if their programs are named, and `convert` reads their
files. Times are means over the answers of the run. Answers to a client's warm-up requests are left
out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from specbench.analysis.columns import value_or_none
from specbench.analysis.metrics import measure
from specbench.data.prompts import load_prompt_sets, plan_tasks
from specbench.log.exchange.convert import UserFacts, convert, parse_file
from specbench.log.run import Run
from specbench.log.store import read_run
from specbench.models.cards import find_model
from specbench.models.chat import ChatCodec, load_codec
from specbench.zoo import TINY
from tests.support.stub_server import serving
from tests.support.timed_server import TimedAnswer, TimedServer

TOKENIZER = TINY / "target"
TASK = "gsm8k"
METHOD = "eagle3"


@dataclass(frozen=True)
class Job:
    """The server and the prompts that a client measures, and the folder of its result."""

    program: str
    """The client's command; empty for specbench."""
    url: str
    prompts: Path
    """File with the prompts."""
    num_prompts: int
    num_tokens: int
    """Number of tokens of each answer."""
    concurrency: int
    folder: Path
    """Folder for the client's result."""


Client = Callable[[Job], Path]
"""Measures a server and returns its result."""


@dataclass(frozen=True)
class Numbers:
    """Sums and means over the answers of a run."""

    num_answers: int
    num_tokens: int
    mat: float | None
    first_s: float
    """Mean time to the first token."""
    per_token_s: float
    """Time per token after the first token, as a mean over the answers."""


def main() -> None:
    """Measure with every client, and print the table."""
    parser = ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("vllm", "guidellm", "aiperf"):
        parser.add_argument(f"--{name}", type=Path, metavar="PATH")
    parser.add_argument("--concurrency", type=int, default=1)
    given = parser.parse_args(sys.argv[1:])
    codec = load_codec(TOKENIZER, find_model("tiny"), "auto")
    prompts = texts_of_prompts(codec)
    print("| client | answers | prompts | tokens | MAT | first token | token after it |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    clients: dict[str, Client] = {"specbench": specbench_run}
    clients |= {name: CLIENTS[name] for name in CLIENTS if getattr(given, name)}
    for name, client in clients.items():
        with TemporaryDirectory() as folder, serving(server_of(codec)) as server:
            job = Job(
                program=str(getattr(given, name, "")),
                url=server.root,
                prompts=write_prompts(prompts, Path(folder)),
                num_prompts=len(prompts),
                num_tokens=server.num_tokens,
                concurrency=given.concurrency,
                folder=Path(folder),
            )
            result = client(job)
            run = read_run(result) if result.is_dir() else imported(result)
            print(row(name, numbers_of(run), prompts, server.answers), flush=True)


def server_of(codec: ChatCodec) -> TimedServer:
    """The server. Its delays are much longer than the delays that a busy machine adds."""
    return TimedServer(codec.text, first_s=1.5, step_s=0.15)


def texts_of_prompts(codec: ChatCodec) -> list[str]:
    """The bundled prompts of the task in tiny's chat template, as text."""
    (prompt_set,) = load_prompt_sets(plan_tasks([TASK], "bundled"), "bundled")
    messages = [{"role": "user", "content": prompt.turns[0]} for prompt in prompt_set.prompts]
    return [codec.text(codec.render([message])) for message in messages]


def write_prompts(prompts: Sequence[str], folder: Path) -> Path:
    """Write the prompts to a file, under the field names that the clients read."""
    lines = [json.dumps({"prompt": text, "text": text}) + "\n" for text in prompts]
    path = folder / "prompts.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def specbench_run(job: Job) -> Path:
    """Measure with `specbench run`, and return the folder of the run."""
    out = job.folder / "run"
    _call(
        [sys.executable, "-m", "specbench", "run", "--backend", "server", "--model", "tiny"],
        ["--url", job.url, "--label", METHOD, "--no-baseline", "--task", TASK],
        ["--prompts", "bundled", "--concurrency", f"{job.concurrency}"],
        ["--max-new-tokens", f"{job.num_tokens}", "--temperature", "0", "--repeats", "1"],
        ["--output", str(out)],
    )
    return out


def vllm(job: Job) -> Path:
    """Measure with vLLM's `bench serve`, and return its detailed result."""
    _call(
        [job.program, "bench", "serve", "--backend", "openai", "--base-url", job.url],
        ["--endpoint", "/v1/completions", "--model", "tiny", "--tokenizer", str(TOKENIZER)],
        ["--dataset-name", "custom", "--dataset-path", str(job.prompts), "--skip-chat-template"],
        ["--custom-output-len", f"{job.num_tokens}", "--num-prompts", f"{job.num_prompts}"],
        ["--disable-shuffle", "--max-concurrency", f"{job.concurrency}", "--temperature", "0"],
        ["--save-result", "--save-detailed", "--result-dir", str(job.folder)],
        ["--result-filename", "bench.json"],
    )
    return job.folder / "bench.json"


def guidellm(job: Job) -> Path:
    """Measure with guidellm, and return its file of results."""
    backend = f"kind=openai_http,target={job.url},model=tiny,request_format=/v1/completions"
    _call(
        [job.program, "run", "--disable-console"],
        ["--backend", f"{backend},max_tokens={job.num_tokens}"],
        ["--profile", f"kind=concurrent,streams={job.concurrency}"],
        ["--constraint", f"kind=max_requests,count={job.num_prompts}"],
        ["--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"],
        ["--data", f"kind=json_file,path={job.prompts}"],
        ["--output", f"kind=json,path={job.folder / 'guidellm.json'}"],
    )
    return job.folder / "guidellm.json"


def aiperf(job: Job) -> Path:
    """Measure with AIPerf, and return its `profile_export.jsonl`."""
    _call(
        [job.program, "profile", "--model", "tiny", "--url", job.url, "--streaming"],
        ["--endpoint-type", "completions", "--tokenizer", str(TOKENIZER), "--ui", "none"],
        ["--custom-dataset-type", "single_turn", "--input-file", str(job.prompts)],
        ["--extra-inputs", f"max_tokens:{job.num_tokens}", "--use-server-token-count"],
        ["--concurrency", f"{job.concurrency}", "--request-count", f"{job.num_prompts}"],
        ["--output-artifact-dir", str(job.folder / "aiperf")],
    )
    return job.folder / "aiperf" / "profile_export.jsonl"


CLIENTS: dict[str, Client] = {"vllm": vllm, "guidellm": guidellm, "aiperf": aiperf}


def _call(*words: Sequence[str]) -> None:
    """Run a program. If it fails, exit with the end of its output."""
    command = [word for part in words for word in part]
    env = {**os.environ, "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


def imported(result: Path) -> Run:
    """The run that `convert` makes from a client's file."""
    return convert([parse_file(f"{METHOD}={result}")], UserFacts(model="tiny", task=TASK))


def numbers_of(run: Run) -> Numbers:
    """The numbers of a run, as specbench defines them."""
    records = [record for record in run.records if record.is_ok]
    per_token_s = [(record.decode_s or 0.0) / (record.num_tokens - 1) for record in records]
    (overall,) = measure(run.at(run.loads[0])).overall.values()
    return Numbers(
        num_answers=len(records),
        num_tokens=sum(record.num_tokens for record in records),
        mat=value_or_none(overall.mat),
        first_s=mean(record.prefill_s or 0.0 for record in records),
        per_token_s=mean(per_token_s),
    )


def sent(answers: Sequence[TimedAnswer]) -> Numbers:
    """The numbers of answers that the server sent."""
    accepted = [number for answer in answers for number in answer.accepted]
    per_token_s = [
        (answer.sent_s[-1] - answer.sent_s[0]) / (answer.num_tokens - 1) for answer in answers
    ]
    return Numbers(
        num_answers=len(answers),
        num_tokens=sum(answer.num_tokens for answer in answers),
        mat=1 + sum(accepted) / len(accepted),
        first_s=mean(answer.sent_s[0] for answer in answers),
        per_token_s=mean(per_token_s),
    )


def row(
    name: str, measured: Numbers, prompts: Sequence[str], answers: Sequence[TimedAnswer]
) -> str:
    """The table's line for a client: the numbers that it measured, and those that were sent."""
    received = [answer.prompt for answer in answers]
    num_exact = sum(prompt in received for prompt in prompts)
    # warm-up requests come first, so the last answer to a prompt is the measured one
    last_answers = {answer.prompt: answer for answer in answers}
    truth = sent([last_answers[prompt] for prompt in prompts if prompt in last_answers])
    mat = "–" if measured.mat is None or truth.mat is None else f"{measured.mat:.4f}"
    cells = [
        name,
        f"{measured.num_answers} of {len(prompts)}",
        f"{num_exact} of {len(prompts)} exact",
        f"{measured.num_tokens} of {truth.num_tokens}",
        f"{mat} of {truth.mat:.4f}",
        _time(measured.first_s, truth.first_s),
        _time(measured.per_token_s, truth.per_token_s),
    ]
    return f"| {' | '.join(cells)} |"


def _time(measured_s: float, true_s: float) -> str:
    deviation = 100 * (measured_s / true_s - 1)
    return f"{1e3 * measured_s:.2f} ms ({deviation:+.2f} %)"


if __name__ == "__main__":
    main()
