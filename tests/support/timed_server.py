"""A server like vLLM with EAGLE-3. Its answers come at exact times and have known counts.

The first token comes `first_s` after the request, and the tokens of step k at `first_s` plus k
times `step_s`. The accepted tokens of each step follow only from the prompt.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.stub_server import Server

NUM_DRAFT_TOKENS = 4
WORD = " tea"


@dataclass(frozen=True)
class TimedAnswer:
    """An answer, and the times at which it was sent, in seconds since the request arrived."""

    prompt: str
    accepted: Sequence[int]
    """Accepted tokens per step."""
    sent_s: Sequence[float]
    """The times of the chunks: the prefill's token, then a chunk per step."""

    @property
    def num_tokens(self) -> int:
        return 1 + sum(self.accepted) + len(self.accepted)


@dataclass
class TimedServer(Server):
    """`text` gives the text of a prompt of token ids. Answers have `num_tokens` tokens."""

    text: Callable[[Sequence[int]], str]
    model: str = "tiny"
    num_tokens: int = 24
    word_id: int = 300
    first_s: float = 0.4
    step_s: float = 0.08
    answers: list[TimedAnswer] = field(default_factory=list)
    root: str = ""
    stop: Callable[[], object] = lambda: None

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/version", self._version)
        app.router.add_get("/health", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._complete)
        return app

    def accepted(self, prompt: str) -> Sequence[int]:
        """The accepted tokens of each step, drawn to add up to the number of tokens."""
        generator, steps, left = random.Random(prompt), list[int](), self.num_tokens - 1
        while left:
            steps.append(min(generator.randint(0, NUM_DRAFT_TOKENS), left - 1))
            left -= steps[-1] + 1
        return steps

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _models(self, request: web.Request) -> web.Response:
        about = {"id": self.model, "object": "model", "owned_by": "tests", "max_model_len": 4096}
        return web.json_response({"object": "list", "data": [about]})

    async def _metrics(self, request: web.Request) -> web.Response:
        steps = [number for answer in self.answers for number in answer.accepted]
        totals = {
            "num_drafts": len(steps),
            "num_draft_tokens": NUM_DRAFT_TOKENS * len(steps),
            "num_accepted_tokens": sum(steps),
        }
        names = '{engine="0",model_name="tiny"'
        lines = [
            f"vllm:spec_decode_{name}_total{names}}} {total}" for name, total in totals.items()
        ]
        for position in range(NUM_DRAFT_TOKENS):
            accepted = sum(number > position for number in steps)
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f'{name}{names},position="{position}"}} {accepted}')
        return web.Response(text="\n".join(lines) + "\n")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        clock = asyncio.get_running_loop().time
        arrived = clock()
        prompt = body["prompt"]
        text = prompt if isinstance(prompt, str) else self.text(prompt)
        accepted = self.accepted(text)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent_s: list[float] = []
        for step, num_tokens in enumerate((1, *(number + 1 for number in accepted))):
            await asyncio.sleep(arrived + self.first_s + step * self.step_s - clock())
            is_last = step == len(accepted)
            choice = {
                "index": 0,
                "text": WORD * num_tokens,
                "token_ids": [self.word_id] * num_tokens,
                "finish_reason": "length" if is_last else None,
            }
            await self._send(response, {"choices": [choice]})
            sent_s.append(clock() - arrived)
        answer = TimedAnswer(text, accepted, sent_s)
        self.answers.append(answer)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": answer.num_tokens}
        usage["total_tokens"] = sum(usage.values())
        metrics = {
            "time_to_first_token_ms": 1e3 * sent_s[0],
            "generation_time_ms": 1e3 * (sent_s[-1] - sent_s[0]),
            "speculative_decoding": _drafts(answer),
        }
        await self._send(response, {"choices": [], "usage": usage, "metrics": metrics})
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _send(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        about = {"id": f"cmpl-{id(response)}", "object": "text_completion", "created": 1}
        event = {**about, "model": self.model, **event}
        await response.write(f"data: {json.dumps(event)}\n\n".encode())


def _drafts(answer: TimedAnswer) -> dict[str, Any]:
    """The counts that vLLM sends with `--per-request-spec-decode-metrics`."""
    num_steps, num_accepted = len(answer.accepted), sum(answer.accepted)
    by_number = Counter(answer.accepted)
    return {
        "num_spec_steps": num_steps,
        "num_draft_tokens": NUM_DRAFT_TOKENS * num_steps,
        "num_accepted_draft_tokens": num_accepted,
        "num_spec_tokens": NUM_DRAFT_TOKENS,
        "mean_acceptance_length": 1 + num_accepted / num_steps,
        "draft_acceptance_rate": num_accepted / (NUM_DRAFT_TOKENS * num_steps),
        "acceptance_histogram": [by_number[number] for number in range(NUM_DRAFT_TOKENS + 1)],
        "per_step_accepted": list(answer.accepted),
        "per_step_drafted": [NUM_DRAFT_TOKENS] * num_steps,
    }
