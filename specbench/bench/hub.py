"""Checkpoints from the Hugging Face Hub: found in the local cache, or downloaded.

Knows repositories, revisions and file names. Every error of the Hub or of the network ends here.
"""

import errno
import fnmatch
import glob
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from specbench.bench.checkpoints import (
    WEIGHT_SUFFIXES,
    check_checkpoint,
    is_weight_name,
    missing_files,
)
from specbench.bench.models import Drafter, ModelCard
from specbench.errors import CheckpointError, UserError

_TIMEOUT_S = 15.0
_TEXT_FILES = ("*.json", "*.model", "*.jinja", "vocab.txt", "merges.txt")


def resolve_model(
    card: ModelCard, *, offline: bool, before_download: Callable[[], object] | None = None
) -> Path:
    """The folder with a target's config, weights and tokenizer, whole as far as files can tell.

    `before_download` may refuse, by a UserError, once the Hub has answered.
    """
    what = f"Model {card.name}"
    path = resolve(
        card.repo,
        card.revision,
        offline=offline,
        what=what,
        alias=card.name,
        before_download=before_download,
    )
    check_checkpoint(path, what=what)
    return path


def resolve_drafter(card: ModelCard, drafter: Drafter, *, offline: bool) -> Path:
    """The folder with a drafter's config and weights (and, for `sps`, its tokenizer)."""
    what = f"The {drafter.method} drafter of {card.name}"
    is_model = drafter.method == "sps"
    path = resolve(
        drafter.repo,
        drafter.revision,
        offline=offline,
        what=what,
        needs_tokenizer=is_model,
        alias=card.name,
    )
    check_checkpoint(path, what=what, needs_tokenizer=is_model)
    return path


def resolve(
    repo: str,
    revision: str = "main",
    *,
    offline: bool,
    what: str,
    needs_tokenizer: bool = True,
    alias: str = "NAME",
    before_download: Callable[[], object] | None = None,
) -> Path:
    """The local folder of a repository, downloaded if needed; a folder's path is taken as it is.

    Only what is loaded is downloaded: one weight format, config, tokenizer. Without network the
    cache is used, if it is complete. `what` and `alias` name it in the CheckpointError that says
    what is missing and how to get it.
    """
    folder = Path(repo).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute():
        hint = "Reinstall specbench." if what.endswith("tiny") else "Check the path."
        raise CheckpointError(f"{what}: there is no folder {folder}.", hint)
    failure: Exception | None = None
    if not (offline or _is_offline_by_environment()):
        try:
            files = wanted_files(_list_files(repo, revision))
            if before_download is not None:
                before_download()
            return _download(repo, revision, files)
        except UserError:
            raise
        except Exception as error:  # the Hub's, the network's and the disk's errors share no base
            failure = error
    cached = _cached(repo, revision)
    missing = missing_files(cached, needs_tokenizer=needs_tokenizer) if cached else ["config.json"]
    if cached is not None and not missing:
        return cached
    if failure is not None:
        _raise_refusal(failure, repo, revision, what)
    kinds = "config.json, weights and tokenizer" if needs_tokenizer else "config.json and weights"
    lack = f"{repo} is not in the Hugging Face cache (needed: {kinds})"
    if cached is not None:
        lack = f"the Hugging Face cache has {repo} without {', '.join(missing)}"
    reason = "the run is offline" if failure is None else in_a_line(failure)
    raise CheckpointError(
        f"{what}: {lack}, and {reason}.",
        f"Where there is network: `specbench fetch --model {alias}` or `hf download {repo}`; then "
        "copy the cache here (HF_HOME says where it is) or give the folder. "
        "`--model tiny` needs no download.",
    ) from failure


def wanted_files(names: Iterable[str]) -> list[str]:
    """The files of a repository that are loaded: no subfolders, and weights in one format only."""
    here = [name for name in names if "/" not in name]
    wanted = [name for name in here if any(fnmatch.fnmatch(name, p) for p in _TEXT_FILES)]
    for suffix in WEIGHT_SUFFIXES:
        weights = [name for name in here if name.endswith(suffix) and is_weight_name(name)]
        if weights:
            others = [other for other in WEIGHT_SUFFIXES if other != suffix]
            unused = tuple(f"{other}.index.json" for other in others)
            return [name for name in wanted if not name.endswith(unused)] + weights
    return wanted


def _is_offline_by_environment() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def unreachable(dataset: str) -> Exception | None:
    """Why the Hub cannot be asked about a data set; None when it answers, whatever it says."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().dataset_info(dataset, timeout=_TIMEOUT_S)
    except HfHubHTTPError:
        return None
    except Exception as error:  # whatever the HTTP client raises without a connection
        return error
    return None


def _cached(repo: str, revision: str) -> Path | None:
    """The snapshot folder of a revision in the local cache, complete or not."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repo, "config.json", revision=revision)
    except HFValidationError as error:
        message = f"{repo!r} is neither a folder that exists nor a Hugging Face id."
        raise CheckpointError(message, "Give a folder, or an id `org/name`.") from error
    return Path(found).parent if isinstance(found, str) else None


def _list_files(repo: str, revision: str) -> Sequence[str]:
    from huggingface_hub import HfApi

    info = HfApi().model_info(repo, revision=revision, timeout=_TIMEOUT_S)
    return [sibling.rfilename for sibling in info.siblings or ()]


def _download(repo: str, revision: str, names: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [glob.escape(name) for name in names]
    return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns))


def _raise_refusal(error: Exception, repo: str, revision: str, what: str) -> None:
    """Raise what the Hub or the disk said, unless it is just that the Hub was not reached."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    page = f"https://huggingface.co/{repo}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        message = f"{what}: the disk is full while downloading {repo}."
        raise CheckpointError(message, "HF_HOME moves the cache; what is there is kept.") from error
    if isinstance(error, errors.GatedRepoError) or status == 403:
        message = f"{what}: {repo} asks for its licence to be accepted first."
        raise CheckpointError(message, f"Accept it on {page}, then `hf auth login`.") from error
    if isinstance(error, errors.RevisionNotFoundError):
        message = f"{what}: {repo} has no revision {revision!r}."
        raise CheckpointError(message, f"{page}/tree/main lists the revisions.") from error
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        raise CheckpointError(
            f"{what}: there is no {repo} on the Hugging Face Hub, and no folder of that name here, "
            "or it is private.",
            "Check the name; for a private or gated repository, `hf auth login`.",
        ) from error


def in_a_line(error: Exception) -> str:
    """What a failed call to the Hub says of itself, for the middle of a sentence."""
    lines = str(error).strip().splitlines()
    return f"the Hub cannot be reached ({type(error).__name__}: {lines[0] if lines else '-'})"
