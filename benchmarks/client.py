"""The client of servers against a server that answers at once: how much load can it make?

    python benchmarks/client.py [--requests N] [--concurrency N]

The goals are 2,000 requests/s and 100,000 streamed tokens/s on two cores. Client and server are two
processes. The CPU time of the client alone is told too: what it takes hardly depends on other work
on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import time
from multiprocessing.connection import Connection

from specbench.measure.server.client import Client
from specbench.measure.server.load import closed_loop
from specbench.measure.server.stream import ChatRequest, completions
from specbench.types import Request

SHORT, LONG = 1, 256
"""Tokens of an answer, to count requests and to count tokens."""


def answer_of(num_tokens: int) -> bytes:
    """A whole response as vLLM streams it: an event a token, then the usage."""
    events = [
        json.dumps({"id": "cmpl-1", "choices": [{"index": 0, "text": " word", "token_ids": [7]}]})
        for _ in range(num_tokens)
    ]
    end = {"index": 0, "text": "", "finish_reason": "length"}
    usage = {"prompt_tokens": 3, "completion_tokens": num_tokens}
    events += [json.dumps({"choices": [end]}), json.dumps({"choices": [], "usage": usage})]
    chunks = [f"data: {event}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + body + b"0\r\n\r\n"


def serve(pipe: Connection) -> None:
    """Answer every request at once; the request says how many tokens."""
    responses = {number: answer_of(number) for number in (SHORT, LONG)}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                writer.write(responses[body["max_tokens"]])
                await writer.drain()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def measure(root: str, num_requests: int, concurrency: int, num_tokens: int) -> None:
    """Send the requests, and print the rates."""
    ask = ChatRequest(Request((1, 2, 3), num_tokens), ())

    async with Client(root) as client:

        async def work(number: int) -> None:
            answer = await client.complete(completions(), "stub", ask)
            assert answer.num_tokens == num_tokens, number

        await closed_loop(range(2 * concurrency), concurrency, work)  # connections, imports
        began, cpu = time.perf_counter(), time.process_time()
        await closed_loop(range(num_requests), concurrency, work)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    tokens = num_requests * num_tokens
    print(
        f"{num_requests} requests of {num_tokens} tokens, {concurrency} at once: "
        f"{num_requests / seconds:,.0f} requests/s, {tokens / seconds:,.0f} tokens/s; "
        f"the client's CPU alone: {num_requests / cpu_s:,.0f} requests/s, "
        f"{tokens / cpu_s:,.0f} tokens/s"
    )


def main() -> None:
    """Measure short and long answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=64)
    given = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    root = f"http://127.0.0.1:{ours.recv()}"
    try:
        for number, num_tokens in ((given.requests, SHORT), (max(given.requests // 4, 1), LONG)):
            asyncio.run(measure(root, number, given.concurrency, num_tokens))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
