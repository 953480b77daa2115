"""specbench from Python: a model with a method, loaded once, completing prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from specbench.errors import UserError
from specbench.types import Completion, Request, Sampling

if TYPE_CHECKING:
    from specbench.bench.plan import Setup
    from specbench.engine.drafter import Drafter
    from specbench.engine.target import Target


@dataclass(frozen=True, slots=True)
class Generation:
    """What `generate` returns: the answer, and how it came about."""

    text: str
    prompt_ids: tuple[int, ...]
    completion: Completion

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The new tokens, EOS included."""
        return self.completion.token_ids

    @property
    def num_steps(self) -> int:
        """Target forwards after the prefill."""
        return len(self.completion.steps)

    @property
    def mean_accepted_tokens(self) -> float:
        """Tokens a step emitted on average; 1 where there was no step."""
        return sum(self.completion.accept_lengths) / self.num_steps if self.num_steps else 1.0

    @property
    def tokens_per_s(self) -> float:
        """New tokens by wall time, prefill included."""
        return self.completion.num_tokens / self.completion.wall_s


class LoadedModel:
    """A target on its device with one method's drafter; see `load`."""

    def __init__(self, setup: Setup, target: Target, drafter: Drafter) -> None:
        self._setup, self._target, self._drafter = setup, target, drafter

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
            prompt: a text, or chat messages (`role`, `content`), put into the model's template.
            input_ids: prompt tokens instead, used as they are: [tokens] or [1, tokens].
            temperature: 0 is greedy.
            top_p: nucleus sampling; 1 is off.
            top_k: sampling among the best k; 0 is off.
            max_new_tokens: the budget; EOS may end the answer earlier.
            seed: of every draw made for this prompt.

        Raises:
            UserError: neither or both of `prompt` and `input_ids`, or a prompt that does not fit.
        """
        from specbench.engine.decode import decode

        if (prompt is None) == (input_ids is None):
            raise UserError("generate takes a prompt or input_ids.", "Give exactly one of them.")
        codec = self._setup.codec
        if input_ids is not None:
            ids = _flat(input_ids)
        else:
            chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            ids = codec.render(chat or ())
        sampling = Sampling(temperature, top_p, top_k)
        request = Request(ids, max_new_tokens, sampling, codec.eos_ids, seed)
        done = decode(self._target, self._drafter, request)
        return Generation(codec.text(done.token_ids), ids, done)


def load(
    model: str = "tiny",
    method: str = "vanilla",
    *,
    device: str = "auto",
    dtype: str = "auto",
    template: str = "auto",
    weights: str = "hub",
    offline: bool = False,
) -> LoadedModel:
    """Load a model and a method, by the names of the command line.

    `load("vicuna-13b", method="eagle2:depth=5").generate("Hello", temperature=0.5)`

    Raises:
        UserError: an unknown name or option, a missing file, or a model that does not fit.
    """
    from specbench.bench.plan import make_setup
    from specbench.bench.session import load_model
    from specbench.bench.spec import RunSpec
    from specbench.engine.drafter import BuildContext

    spec = RunSpec(model, (method,), device=device, dtype=dtype, template=template,
                   is_baseline_run=False, weights=weights)  # fmt: skip
    setup = make_setup(spec, is_offline=offline)
    if len(setup.contestants) != 1:
        raise UserError(f"{method!r} names {len(setup.contestants)} methods.", "Name one.")
    target = load_model(setup)
    chosen = setup.contestants[0]
    context = BuildContext(target, chosen.weights)
    return LoadedModel(setup, target, chosen.method.build(chosen.options, context))


def _flat(input_ids: Sequence[int] | Tensor) -> tuple[int, ...]:
    listed: list[Any] = input_ids.tolist() if isinstance(input_ids, Tensor) else [*input_ids]
    if listed and isinstance(listed[0], list):
        if len(listed) != 1:
            raise UserError(f"input_ids hold {len(listed)} prompts.", "Give one at a time.")
        listed = listed[0]
    return tuple(int(token) for token in listed)
