"""Record responses of a real engine on `tiny`; the tests of `make test` replay them.

    python -m tests.engines.record vllm --command PATH --method eagle3
    python -m tests.engines.record llamacpp --command PATH --model DIR --method sps:weights=DIR/sps

It starts the engine without speculation and with the method, sends the requests of a run, and
writes `tests/support/responses/ENGINE-METHOD.json`. Names of folders are left out.
"""

import argparse
import json
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.measure.server import NAMES
from specbench.measure.server.find import HELLO, PROBE_TOKENS
from specbench.measure.server.openai_api import completions
from specbench.measure.server.servers import OpenServer
from specbench.measure.server.started_setup import StartedSetup, make_started_setup
from specbench.measure.server.stream import ChatRequest
from specbench.measure.spec import RunSpec
from specbench.types import Request
from tests.support.replay import RESPONSES, Exchange

QUESTION = "Uma has 22 eggs. Vera has 11 fewer eggs than Uma. How many eggs does Vera have?"
ASKED = [{"role": "user", "content": QUESTION}]
NUM_TOKENS, CONTEXT = 64, 2048
QUESTIONS = ("/v1/models", "/version", "/props", "/get_server_info", "/metrics")
_LEFT_OUT = ("_bucket", "_created", "# ", "python_", "process_", "http_")
"""Lines of metrics that are left out, since there are many and nothing reads them."""


def main() -> None:
    """Record and write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("engine", choices=NAMES)
    parser.add_argument("--command", required=True)
    parser.add_argument("--method", required=True)
    parser.add_argument("--model", default="tiny")
    given = parser.parse_args()
    spec = RunSpec(
        backend="server", serving_engine=given.engine, engine_command=(given.command,),
        methods=(given.method,), model=given.model, dtype="float32", device="cpu",
    )  # fmt: skip
    setup = make_started_setup(spec, is_offline=True)
    with tempfile.TemporaryDirectory() as folder, setup.open(Path(folder)) as backend:
        for method in setup.labels:
            server = backend.run(backend.open(method))
            responses = [shortened(response, setup) for response in exchanges(server, setup)]
            name = f"{given.engine}-{method.partition(':')[0]}.json"
            (RESPONSES / name).write_text(json.dumps(responses, indent=1), encoding="utf-8")
            print(f"{name}: {len(responses)} responses", file=sys.stderr)


def exchanges(server: OpenServer, setup: StartedSetup) -> Iterator[Exchange]:
    """The exchanges of a run: facts about the server, answers of each endpoint, and refusals."""
    protocol = server.properties.protocol
    root, model = server.properties.header.url, server.properties.header.model
    prompt, hello = setup.codec.render(ASKED), setup.codec.render(HELLO)
    whole = ChatRequest(Request(prompt, NUM_TOKENS), ASKED)
    for path in QUESTIONS:
        yield exchange(root, path)
    for form in (protocol, completions(is_chat=True)):
        probe = ChatRequest(Request(hello, PROBE_TOKENS), HELLO)
        yield exchange(root, form.path, form.body(model, probe))
        yield exchange(root, form.path, form.body(model, whole))
    too_long = replace(whole, request=Request(long_prompt(prompt), 8))
    yield exchange(root, protocol.path, protocol.body(model, too_long))
    yield exchange(root, "/metrics")


def long_prompt(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """A prompt that does not fit into tiny's context."""
    return (prompt * CONTEXT)[: CONTEXT + 1]


def exchange(root: str, path: str, body: dict[str, Any] | None = None) -> Exchange:
    """A request and its response, whatever the status."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Connection": "close"}
    request = urllib.request.Request(root + path, data=data, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=600)
    except urllib.error.HTTPError as error:
        response = error
    with response:
        text = response.read().decode()
        if path == "/metrics":
            lines = text.splitlines(keepends=True)
            text = "".join(line for line in lines if not any(word in line for word in _LEFT_OUT))
        kind = response.headers["Content-Type"] or ""
        return Exchange(path=path, body=body, status=response.status, content_type=kind, text=text)


def shortened(response: Exchange, setup: StartedSetup) -> Exchange:
    """The exchange without the names of the folders that the engine was given."""
    text = response["text"]
    weights = [launch.weights for launch in setup.servers.values() if launch.weights]
    for folder in (setup.path, *weights):
        text = text.replace(f"{folder.parent}/", "")
    return {**response, "text": text}


if __name__ == "__main__":
    main()
