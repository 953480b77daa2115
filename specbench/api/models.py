"""Load models that complete prompts from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from specbench.api.libraries import quiet_libraries
from specbench.api.signatures import options_of, show_options
from specbench.errors import UserError, cut, unknown_name, visible
from specbench.machine.threads import wait_briefly
from specbench.types import Completion, Request

if TYPE_CHECKING:
    from torch import Tensor

    from specbench.measure.local.engine import EngineBackend
    from specbench.measure.local.engine_setup import EngineSetup


@dataclass(frozen=True, slots=True, repr=False)
class Generation:
    """The answer that `generate` returns, with its tokens, steps and times."""

    text: str
    prompt_ids: tuple[int, ...]
    completion: Completion

    def __repr__(self) -> str:
        return (
            f"<Generation {cut(self.text, 40)!r}: {self.completion.num_tokens} tokens in "
            f"{self.num_steps} steps, MAT {self.mean_accepted_tokens:.2f}, "
            f"{self.tokens_per_s:.0f} tokens/s>"
        )

    def _repr_html_(self) -> str:
        numbers = {
            "tokens": self.completion.num_tokens,
            "steps": self.num_steps,
            "MAT": f"{self.mean_accepted_tokens:.2f}",
            "tokens/s": f"{self.tokens_per_s:.0f}",
        }
        head = "".join(f"<th>{name}</th>" for name in numbers)
        row = "".join(f"<td>{number}</td>" for number in numbers.values())
        answer = f'<p style="white-space: pre-wrap">{escape(visible(self.text))}</p>'
        return f"{answer}<table><tr>{head}</tr><tr>{row}</tr></table>"

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The new tokens, including EOS."""
        return self.completion.token_ids

    @property
    def num_steps(self) -> int:
        """The number of target forwards after the prefill."""
        return len(self.completion.steps)

    @property
    def mean_accepted_tokens(self) -> float:
        """The mean number of tokens emitted per step, or 1 if there was no step."""
        return sum(self.completion.accept_lengths) / self.num_steps if self.num_steps else 1.0

    @property
    def tokens_per_s(self) -> float:
        """The new tokens per second of wall time, prefill included."""
        return self.completion.num_tokens / self.completion.wall_s


class LoadedModel:
    """A target on its device with the drafter of a method, as `load` returns it."""

    def __init__(self, setup: EngineSetup, backend: EngineBackend) -> None:
        self._setup = setup
        self._backend = backend

    def __repr__(self) -> str:
        return f"<LoadedModel {self._setup.title}: {self._setup.labels[0]}>"

    def generate(
        self,
        prompt: str | Sequence[dict[str, str]] | None = None,
        *,
        input_ids: Sequence[int] | Tensor | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        max_new_tokens: int = 512,
        seed: int = 0,
    ) -> Generation:
        """Complete one prompt.

        Args:
            prompt: a text, or chat messages (`role`, `content`) for the model's template.
            input_ids: the prompt's tokens instead of `prompt`: [tokens] or [1, tokens].
            temperature: 0 is greedy.
            top_p: the share for nucleus sampling. 1 turns it off.
            top_k: the number of most likely tokens to sample from. 0 turns it off.
            max_new_tokens: the largest number of new tokens. EOS may end the answer earlier.
            seed: the seed of all draws for this prompt.

        Raises:
            UserError: neither or both of `prompt` and `input_ids` are given, the prompt does not
                fit, or a value is out of range.
        """
        if (prompt is None) == (input_ids is None):
            raise UserError("generate takes a prompt or input_ids.", "Give exactly one of them.")
        codec = self._setup.codec
        ids = _flat(input_ids) if input_ids is not None else codec.render(_chat(prompt))
        num_tokens = self._backend.target.vocab_size
        if max(ids) >= num_tokens:
            raise UserError(
                f"The prompt has token {max(ids)}, and the model has {num_tokens} tokens.",
                "Take the ids from the model's own tokenizer.",
            )
        from specbench.measure.spec import make_spec

        spec = make_spec(
            max_new_tokens=max_new_tokens,
            temperatures=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
        )
        request = Request(ids, max_new_tokens, spec.sampling(temperature), codec.eos_ids, seed)
        completion = self._backend.complete(self._setup.labels[0], request)
        return Generation(codec.text(completion.token_ids), ids, completion)


def load(
    model: str = "tiny", method: str = "vanilla", *, offline: bool = False, **values: Any
) -> LoadedModel:
    """Load a model and a method by their names on the command line.

    `load("vicuna-13b", method="eagle2:depth=5").generate("Hello", temperature=0.5)`

    Args:
        model: a known model, a folder or a Hub id.
        method: a method, which may have options.
        offline: do not use the network.
        values: further options of the model, as on the command line: `device`, `dtype`, `template`,
            `weights`, `kernels` and `threads`. `threads` is the number of CPU threads per
            operation. None picks the number with the fastest step.

    Raises:
        UserError: a name or option is unknown, a file is missing, or there is too little memory.
    """
    wait_briefly()
    from specbench.measure.local.engine import EngineBackend
    from specbench.measure.local.engine_setup import make_engine_setup
    from specbench.measure.spec import make_spec

    allowed = ["model", "method", "offline", *(option.name for option in options_of("model"))]
    for name, given in {"model": model, "method": method}.items():
        if not isinstance(given, str):
            raise UserError(f"load takes {name} as a string, not {given!r}.", "Name one.")
    for name in values:
        if name not in allowed:
            raise unknown_name("value", name, allowed)
    with quiet_libraries():
        spec = make_spec(model=model, methods=method, is_baseline_run=False, **values)
        setup = make_engine_setup(spec, is_offline=offline)
        if len(setup.methods) != 1:
            raise UserError(f"{method!r} names {len(setup.methods)} methods.", "Name one.")
        return LoadedModel(setup, EngineBackend(setup).__enter__())


show_options(load, "model")


def _chat(prompt: Any) -> Sequence[dict[str, str]]:
    """Return the prompt as messages."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not (isinstance(prompt, list | tuple) and all(map(_is_message, prompt))):
        raise UserError(
            f"The prompt {prompt!r:.60} is neither a text nor a list of messages.",
            "Give a text, messages as {'role': 'user', 'content': 'Hello'}, or token ids as "
            "input_ids=[1, 2, 3]. Call generate once per prompt.",
        )
    return list(prompt)


def _is_message(message: Any) -> bool:
    """True for a dictionary with the texts `role` and `content`."""
    if not isinstance(message, dict):
        return False
    return isinstance(message.get("role"), str) and isinstance(message.get("content"), str)


def _flat(input_ids: Sequence[int] | Tensor) -> tuple[int, ...]:
    """Return the ids of one prompt, which are [tokens] or [1, tokens]."""
    token_ids: Any = input_ids.tolist() if hasattr(input_ids, "tolist") else input_ids
    is_list = isinstance(token_ids, Sequence) and len(token_ids) > 0
    if is_list and isinstance(token_ids[0], list):
        if len(token_ids) != 1:
            raise UserError(f"input_ids hold {len(token_ids)} prompts.", "Give one at a time.")
        token_ids = token_ids[0]
    if not is_list or not all(isinstance(token, int) and token >= 0 for token in token_ids):
        raise UserError(
            f"input_ids {token_ids!r:.60} are not token ids.", "Give them as [1, 2, 3]."
        )
    return tuple(token_ids)
