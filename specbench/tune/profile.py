"""Acceptance profiles: what methods draft at every position of vanilla's answers; their files.

A profile belongs to a model, methods' weights, prompts and a temperature, not to a machine. Its
file and its making share this module: what an array means is how it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from specbench.engine.accept import lossless
from specbench.engine.decode import decode, token_limit
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward, Target
from specbench.engine.tree import DraftTree
from specbench.errors import SpecbenchError, UserError, reading
from specbench.log.differences import PROFILE
from specbench.log.files import write_whole
from specbench.log.header import PromptsHeader
from specbench.log.methods import MethodHeader
from specbench.log.model import ModelHeader
from specbench.measure.base import Plan, Progress, SetupInfo
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_load import load_engine
from specbench.measure.local.engine_setup import EngineSetup
from specbench.measure.methods import BASELINE
from specbench.measure.plan import make_plan
from specbench.measure.progress import Lines
from specbench.measure.runner import Runner
from specbench.measure.spec import make_spec
from specbench.methods.shared.stored_pool import StoredPool
from specbench.settings.files import versions
from specbench.settings.run_method import RunMethod
from specbench.types import Completion, ProfileKind, Record, Request, Sampling, StopReason

if TYPE_CHECKING:
    from torch import Tensor

Say = Callable[[str], None]
SEEDS = 3
"""Answers to each prompt above temperature 0."""
MOST_BYTES_A_POSITION, ZIP_BYTES = 4096, 1000
"""Size of what one method has at one position, and of the names of the file's arrays."""
SCHEMA = 1
PROFILE_FILE, ARRAYS = "profile.json", "profile.npz"
MOST_BYTES = 50_000_000
"""Size of a profile's arrays."""
Arrays = Mapping[str, NDArray[Any]]
"""The recorded data of a method, with one row for each position."""


class AnswerHeader(msgspec.Struct, frozen=True):
    """One of vanilla's answers. Its token ids, and its prompt's, are in the arrays."""

    prompt: str
    """Its name, "task/sample_id/turn"."""
    prompt_tokens: int
    """Tokens of the prompt."""
    num_tokens: int
    """Tokens of the answer; EOS is one of them."""
    limit: int
    """Tokens that the answer could have had."""
    stop_reason: StopReason | None
    """End token, token budget, or the model's context length."""
    sha256: str
    """Hash of the token ids of prompt and answer."""


class ProfiledMethod(msgspec.Struct, frozen=True):
    """A method of a profile: the kind of data that is stored, and how it was drafted."""

    kind: ProfileKind
    has_fixed_size: bool
    """True if its drafts are as long at the end of an answer as elsewhere."""
    about: MethodHeader
    """Options of the recorded drafts, and weights."""


class ProfileHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The file `profile.json`."""

    schema: int = SCHEMA
    model: ModelHeader
    methods: dict[str, ProfiledMethod]
    """By the spelling that was asked for."""
    sampling: Sampling
    max_new_tokens: int
    vocab_size: int
    prompts: tuple[PromptsHeader, ...]
    answers: tuple[AnswerHeader, ...]
    num_left_out: int
    """Answers that some method's forward of one row did not reproduce, by rounding."""
    versions: dict[str, str]
    arrays_sha256: str = ""
    """Hash of `profile.npz`."""


class Answer(NamedTuple):
    """One of vanilla's answers, and the drafts of each method: arrays with a row a position.

    A position is a token of the answer that a step begins from: all but the last.
    """

    about: AnswerHeader
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    drafts: Mapping[str, Arrays]


@dataclass(frozen=True)
class Profile:
    """An acceptance profile: its header, and vanilla's answers with what methods drafted."""

    header: ProfileHeader
    answers: tuple[Answer, ...]

    def check(self, model: ModelHeader, methods: Mapping[str, MethodHeader]) -> None:
        """Refuse another model, and other weights of a method, with both values.

        Raises:
            UserError: the profile is not one of this model and these methods.
        """
        both = {k: one.about for k, one in self.header.methods.items() if k in methods}
        own = SetupInfo(self.header.model, both)
        conflicts = PROFILE.conflicts(own, SetupInfo(model, {k: methods[k] for k in both}))
        check_same(
            "The profile is not one of this model and its weights:",
            ("in the profile", "here"),
            ((one.field, one.first, one.second) for one in conflicts),
            "Make one of them: specbench tune profile --model M --method A,B --out DIR",
        )

    def write(self, folder: Path) -> None:
        """Write `profile.json` and `profile.npz`.

        Raises:
            UserError: the folder holds a profile, or the arrays are too large.
        """
        check_free(folder, PROFILE_FILE)
        parts: dict[str, list[NDArray[Any]]] = {}
        for answer in self.answers:
            for label, arrays in answer.drafts.items():
                for name, array in arrays.items():
                    parts.setdefault(f"{label}/{name}", []).append(array)
        for name in ("prompt_ids", "token_ids"):
            parts[name] = [np.array(getattr(one, name), np.int32) for one in self.answers]
        content = packed({name: _joined(arrays) for name, arrays in parts.items()})
        if len(content) > MOST_BYTES:
            raise too_large(len(content))
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / ARRAYS, content)
        digest = sha256(content).hexdigest()
        header = msgspec.structs.replace(self.header, arrays_sha256=digest)
        write_whole(folder / PROFILE_FILE, msgspec.json.format(msgspec.json.encode(header)))


def check_same(
    title: str, where: tuple[str, str], pairs: Iterable[tuple[str, Any, Any]], hint: str
) -> None:
    """Raise UserError, with both values, if those of any name differ."""
    found = [
        f"  {name}: {one or 'none'} {where[0]}, {other or 'none'} {where[1]}"
        for name, one, other in pairs
        if one != other
    ]
    if found:
        raise UserError("\n".join([title, *found]), hint)


def check_free(folder: str | Path | None, name: str, what: str = "profile") -> None:
    """Raise UserError if a folder has the file of this name, of a profile or curve."""
    if folder is not None and Path(folder, name).exists():
        raise UserError(f"{folder} holds a {what}.", "Give --out another folder.")


def too_large(size: int) -> UserError:
    """The error for a profile of this size in bytes."""
    return UserError(
        f"The profile has about {size:,} bytes, more than {MOST_BYTES:,}.",
        "Give fewer prompts (--limit N), or profile the methods one by one.",
    )


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The rows of all answers. Drawn chains of a short answer may be shorter than others."""
    if arrays[0].ndim == 2:
        width = max(one.shape[1] for one in arrays)
        arrays = [np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in arrays]
    return np.concatenate(arrays)


def packed(arrays: Arrays) -> bytes:
    """A compressed file of arrays."""
    buffer, by_name = BytesIO(), dict[str, Any](arrays)
    np.savez_compressed(buffer, **by_name)
    return buffer.getvalue()


def read_profile(folder: str | Path) -> Profile:
    """Read the profile in a folder.

    Raises:
        UserError: the folder has no profile, or it is damaged or of a newer version.
    """
    path, hint = Path(folder), "Make it again: specbench tune profile"
    header = read_json(path / PROFILE_FILE, ProfileHeader, "Profile", hint)
    with reading(path / ARRAYS, "Profile", hint):
        content = (path / ARRAYS).read_bytes()
        if (found := sha256(content).hexdigest()) != header.arrays_sha256:
            wanted = f"{PROFILE_FILE} names {header.arrays_sha256[:12]}…"
            raise UserError(f"{path / ARRAYS} has sha256 {found[:12]}…, and {wanted}.", hint)
        sizes = [(one.prompt_tokens, one.num_tokens, one.num_tokens - 1) for one in header.answers]
        of_prompts, of_answers, of_drafts = np.cumsum(sizes, 0)[:-1].T
        arrays = dict(np.load(BytesIO(content), allow_pickle=False))
        prompts = np.split(arrays.pop("prompt_ids"), of_prompts)
        tokens = np.split(arrays.pop("token_ids"), of_answers)
        drafts = {name: np.split(array, of_drafts) for name, array in arrays.items()}
    answers = []
    for i, about in enumerate(header.answers):
        own: dict[str, dict[str, NDArray[Any]]] = {label: {} for label in header.methods}
        for name, parts in drafts.items():
            label, _, part = name.rpartition("/")
            own[label][part] = parts[i]
        answers.append(Answer(about, tuple(prompts[i].tolist()), tuple(tokens[i].tolist()), own))
    return Profile(header, tuple(answers))


Header = TypeVar("Header", bound=msgspec.Struct)


def read_json(path: Path, kind: type[Header], what: str, hint: str) -> Header:
    """The header in a file of a profile or curve."""
    if not path.is_file():
        raise UserError(f"{path.parent} holds no {what.lower()} ({path.name}).", hint)
    with reading(path, what, hint):
        found = msgspec.json.decode(path.read_bytes(), type=kind)
    if (schema := getattr(found, "schema", 0)) > SCHEMA:
        reason = f"{path} has schema {schema}, newer than {SCHEMA}."
        raise UserError(reason, "Use a newer specbench.")
    return found


def profile(
    model: str = "tiny",
    methods: str | Sequence[str] = (),
    *,
    output: str | Path | None = None,
    offline: bool = False,
    say: Say | None = None,
    **values: Any,
) -> Profile:
    """Record what methods draft at every position of vanilla's answers.

    `profile("tiny", "eagle2:depth=5,top_k=8,pld", tasks="gsm8k", output="profiles/mine")`

    The options of a method are the largest ones that the profile can be replayed with.

    Args:
        model: a known model, a folder or a Hub id.
        methods: methods with options, in one text or several.
        output: the folder of `profile.json` and `profile.npz`; by default nothing is written.
        offline: use no network.
        say: receives a line per finished answer and message.
        values: further fields of `specbench.log.spec.SpecValues`, such as `tasks`, `limit`,
            `max_new_tokens`, `dtype`, `threads` and `temperatures`. Above temperature 0 there
            are `repeats` answers to each prompt, by default 3.

    Raises:
        UserError: an unknown name or wrong value, several temperatures, a method without a
            profile, or a profile that is too large.
    """
    made = engine_plan(model, methods, values, offline=offline)
    check_free(output, PROFILE_FILE)
    found = recorded_plan(*made, Lines(say or (lambda text: None)), is_named=bool(methods))
    if output is not None:
        found.write(Path(output))
    return found


def engine_plan(
    model: str, methods: str | Sequence[str], values: Mapping[str, Any], *, offline: bool
) -> tuple[Plan, EngineSetup]:
    """The plan of values from Python, with the paper's settings: one pass of greedy answers.

    Raises:
        UserError: an unknown name or wrong value, a server, or several temperatures.
    """
    given = {"repeats": SEEDS, **values, **({"methods": methods} if methods else {})}
    spec = make_spec(**given | {"model": model, "settings": "paper", "is_baseline_run": True})
    if len(spec.temperatures) > 1:
        listed = ",".join(f"{one:g}" for one in spec.temperatures)
        reason = f"A profile and a cost curve have one temperature, not {listed}."
        raise UserError(reason, "Give one of them.")
    if spec.sampling(spec.temperatures[0]).is_greedy:
        spec = msgspec.structs.replace(spec, repeats=1)
    plan = make_plan(spec, is_offline=offline)
    if not isinstance(plan.setup, EngineSetup):
        raise UserError("A server has neither profile nor cost curve.", "Leave --url out.")
    return plan, plan.setup


def kinds_of(
    setup: EngineSetup, drafters: Mapping[str, Drafter], sampling: Sampling, say: Say | None
) -> dict[str, ProfileKind]:
    """The kind of data to record for each method. `say` gets a line for each other method.

    Raises:
        UserError: without `say`, a method has no profile.
    """
    found = dict[str, ProfileKind]()
    for label in setup.labels:
        drafter = drafters[label]
        if reason := _reason(drafter, not sampling.is_greedy):
            message = f"{label} has no acceptance profile: {reason}."
            if say is None:
                hint = f"Ordinary runs measure its settings: specbench run --method '{label}'"
                raise UserError(message, f"Leave it out. {hint}")
            say(message)
        elif drafter.profile:
            found[label] = drafter.profile
    return found


def _reason(drafter: Drafter, is_drawn: bool) -> str:
    if drafter.profile is None:
        _ = drafter.needs  # a broken one says why
        return "its drafts depend on earlier trees or answers, or the method does not say"
    if is_drawn and drafter.rule is not lossless:
        return "above temperature 0 its rule gives other answers than vanilla's"
    if is_drawn and drafter.draws_siblings:
        return "above temperature 0 it draws siblings, and an answer shows only one"
    return ""


class Along(Sampler):
    """Draws the tokens of an answer, whatever their probabilities, and keeps these."""

    def __init__(self, sampler: Sampler, following: Sequence[int]) -> None:
        self.__dict__.update(sampler.__dict__)
        self.generator = sampler.generator.clone_state()  # not to move the target's
        self._following = iter(following)
        self.kept: list[float] = []

    def draw(self, probs: Tensor) -> Tensor:
        import torch

        tokens = [next(self._following, 0) for _ in probs]  # after the end, any
        drawn = torch.tensor(tokens, device=probs.device)
        self.kept += probs.gather(1, drawn[:, None])[:, 0].tolist()
        return drawn


class Recorder(Drafter):
    """Lets a drafter propose at every position of `answer`; the target gets the root alone.

    So the target's answer is vanilla's, and every step emits one token. A chain whose
    tokens are drawn is drafted along the answer: the rule accepts an emitted token with
    probability min(1, q / p).
    """

    tree_sizes = (1,)

    def __init__(self, drafter: Drafter, answer: Sequence[int]) -> None:
        self._drafter, self._answer, self.needs = drafter, answer, drafter.needs
        self._is_chain = drafter.profile in ("path", "token")
        self._rows: list[Any] = []
        self._target: list[float] = []

    def start(self, state: State, prefill: Forward) -> None:
        self._drafter.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        following = self._answer[len(state.token_ids) - len(state.request.prompt_ids) :]
        if self._drafter.profile == "ranks":
            self._rows.append(self._drafter.ranks(state, following))
        elif self._drafter.profile == "pool":
            self._rows.append(StoredPool.read(self._drafter.propose(state)))
        elif state.sampler.sampling.is_greedy:
            self._rows.append(_num_right(self._drafter.propose(state), following))
        else:
            along = copy(state)  # with the same tokens
            object.__setattr__(along, "sampler", sampler := Along(state.sampler, following))
            tree = self._drafter.propose(along)
            certain = [np.inf] * _num_right(tree, following)
            self._rows.append(certain if tree.q is None else sampler.kept)
        return state.chain()

    def observe(self, state: State, result: StepResult) -> None:
        if self._is_chain and not state.sampler.sampling.is_greedy:
            p = state.sampler.probs(result.forward.logits[:1])
            self._target.append(float(p[0, state.pending]))
        self._drafter.observe(state, result)

    @property
    def arrays(self) -> Arrays:
        """The recorded drafts, with a row for each token of the answer except the last."""
        kind, rows = str(self._drafter.profile), self._rows
        if kind == "pool":
            parts = map(np.stack, zip(*rows, strict=True))
            return dict(zip(StoredPool._fields, parts, strict=False))
        if self._is_chain and rows and isinstance(rows[0], list):
            found = _chances(rows, self._target)
            return {kind: found if kind == "path" else found[:, 0]}
        return {kind: np.array(rows, dtype=np.uint16)} if rows else {}


def _num_right(tree: DraftTree, following: Sequence[int]) -> int:
    pairs = zip(tree.tokens.tolist()[1:], following, strict=False)
    return sum(1 for _ in takewhile(lambda one: one[0] == one[1], pairs))


def _chances(draft: Sequence[Sequence[float]], target: Sequence[float]) -> Any:
    """The chance [positions, tokens] that each token of a chain is accepted, as float32.

    `draft` has the probabilities of the answer's tokens from each position on, `target` the
    target's, without the last one: whether that is accepted changes no step.
    """
    found = np.zeros((len(draft), max(1, *map(len, draft))), np.float32)
    for at, row in enumerate(draft):
        for depth, (q, p) in enumerate(zip(row, target[at:], strict=False)):
            found[at, depth] = min(1.0, q / p)
    return found


class _Backend(EngineBackend):
    """The engine, which keeps its last request with the answer, and no records."""

    last: tuple[Request, Completion]

    def complete(self, method: str, request: Request) -> Completion:
        self.last = request, super().complete(method, request)
        return self.last[1]

    def append(self, record: Record) -> None: ...


def recorded_plan(plan: Plan, setup: EngineSetup, progress: Progress, *, is_named: bool) -> Profile:
    """Complete all requests with vanilla, then each with a recorder of each method.

    A method without a profile is refused if the user named it, else left out.
    """
    setup = replace(setup, methods=tuple(map(_widened, setup.methods)))
    loaded, sampling = load_engine(setup), plan.spec.sampling(plan.spec.temperatures[0])
    drafters = loaded.drafters
    kinds = kinds_of(setup, drafters, sampling, None if is_named else progress.message)
    methods = {
        one.label: ProfiledMethod(kind, drafters[one.label].has_fixed_size, one.describe())
        for one in setup.methods
        if (kind := kinds.get(one.label))
    }
    recorded = {label: drafters[label] for label, kind in kinds.items() if kind != "text"}
    setup = replace(setup, methods=tuple(one for one in setup.methods if one.label == BASELINE))
    plan = replace(plan, setup=setup)
    with _Backend(setup, loaded=loaded) as backend:
        progress.started(plan.num_records)
        answers = tuple(_answers(backend, plan, recorded, progress))
        progress.finished()
    if left_out := plan.num_records - len(answers):
        share = f"{left_out} of {plan.num_records} answers"
        progress.message(f"{share} are left out: they differ by rounding.")
    if not answers:
        raise SpecbenchError("No method reproduced any of vanilla's answers.")
    header = ProfileHeader(
        model=plan.about.model,
        methods=methods,
        sampling=sampling,
        max_new_tokens=plan.max_new_tokens,
        vocab_size=loaded.target.vocab_size,
        prompts=tuple(one.describe() for one in plan.prompt_sets),
        answers=tuple(one.about for one in answers),
        num_left_out=left_out,
        versions=versions(),
    )
    return Profile(header, answers)


def _answers(
    backend: _Backend, plan: Plan, drafters: Mapping[str, Drafter], progress: Progress
) -> Iterator[Answer]:
    """Vanilla's answers with all methods' drafts, but for those that rounding changes."""
    size = 0
    for number, record in enumerate(Runner(plan, backend, backend, progress).run(), start=1):
        name = f"{record.key.task}/{record.key.sample_id}/{record.key.turn}"
        if not record.is_ok:
            raise SpecbenchError(f"Vanilla failed at {name}: {record.error}")
        one = recorded_answer(name, backend.target, drafters, *backend.last)
        if one is not None:
            size += sum(_size(label, arrays) for label, arrays in one.drafts.items())
            yield one
        expected = size * plan.num_records // number
        if expected > 2 * MOST_BYTES:  # answers may be shorter than the first ones
            raise too_large(expected)


def recorded_answer(
    prompt: str,
    target: Target,
    drafters: Mapping[str, Drafter],
    request: Request,
    done: Completion,
) -> Answer | None:
    """An answer with the drafts of all methods; None if rounding changes the answer of any."""
    drafts: dict[str, Arrays] = {}
    is_same, token_ids = True, done.token_ids
    is_drawn = not request.sampling.is_greedy  # graphs would keep the answer's tokens
    with target.execution.paused() if is_drawn else nullcontext():
        for label, drafter in drafters.items():
            recorder = Recorder(drafter, token_ids)
            is_same &= decode(target, recorder, request).token_ids == token_ids
            drafts[label] = recorder.arrays
    if not is_same:
        return None
    both = np.array([*request.prompt_ids, *token_ids], dtype=np.int32).tobytes()
    sizes = len(request.prompt_ids), len(token_ids), token_limit(target, request)
    about = AnswerHeader(prompt, *sizes, done.stop_reason, sha256(both).hexdigest())
    return Answer(about, request.prompt_ids, token_ids, drafts)


def _widened(one: RunMethod) -> RunMethod:
    """The method with the options that its drafts are recorded with."""
    return one.with_options(one.options.profiled())


def _size(label: str, arrays: Arrays) -> int:
    """Bytes of a method's drafts on an answer, which may be too many a position."""
    size, positions = len(packed(arrays)), len(next(iter(arrays.values()), ()))
    if positions and size > MOST_BYTES_A_POSITION * positions + ZIP_BYTES:
        taken = f"{label} takes {size / positions:,.0f} bytes a position"
        hint = "Give a smaller top_k or depth, such as top_k=8,depth=5."
        raise UserError(f"{taken}, not {MOST_BYTES_A_POSITION:,}.", hint)
    return size
