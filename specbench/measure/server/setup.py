"""Set up a run on servers that run already.

Asks each server what it is, and finds the tokenizer of the model.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specbench import registry
from specbench.errors import UserError, printable
from specbench.log.header import MethodHeader, ModelHeader, RunHeader
from specbench.measure.base import SetupInfo
from specbench.measure.methods import BASELINE
from specbench.measure.server.address import server_root
from specbench.measure.server.backend import ServerBackend
from specbench.measure.server.client import Client
from specbench.measure.server.find import FoundServer, find_server
from specbench.measure.server.servers import RunningServers
from specbench.measure.spec import RunSpec
from specbench.models.cards import ModelCard, find_model
from specbench.models.chat import ChatCodec, load_codec
from specbench.models.hub import resolve_tokenizer

NO_BASELINE_WARNING = (
    "No server is labelled vanilla, so there is no speedup. Start the same server without "
    "speculation beside it, and give both: --url A --label vanilla --url B --label NAME."
)
CHAT_WARNING = (
    "{} take no prompt as tokens: the chat was sent as messages, and the server's own template "
    "made the prompt. Token counts of the prompt are ours."
)
TEXT_WARNING = (
    "{} send no token ids: the text was tokenised, which can differ from the tokens that were "
    "generated. Tokens are counted by the server."
)


@dataclass(frozen=True)
class ServerSetup:
    """Running servers by label, with the tokenizer of their model."""

    spec: RunSpec
    card: ModelCard
    codec: ChatCodec
    servers: Mapping[str, FoundServer]
    no_checkpoint: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.card.title} ({', '.join(self.software)})"

    @cached_property
    def software(self) -> tuple[str, ...]:
        """The servers' software, each once."""
        return tuple(dict.fromkeys(found.header.software for found in self.servers.values()))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(sorted(self.servers, key=lambda label: label != BASELINE))

    @property
    def context(self) -> int | None:
        known = [found.context for found in self.servers.values() if found.context]
        return min(known, default=None)

    def describe(self) -> SetupInfo:
        chat = [label for label, one in self.servers.items() if not one.protocol.takes_tokens]
        text = [label for label, one in self.servers.items() if not one.header.sends_token_ids]
        told = (
            self.codec.template.warning,
            NO_BASELINE_WARNING if BASELINE not in self.servers else None,
            CHAT_WARNING.format(f"The servers of {', '.join(chat)}") if chat else None,
            TEXT_WARNING.format(f"The servers of {', '.join(text)}") if text else None,
        )
        return SetupInfo(
            model_header(self.card, self.codec, self.spec, served_by=self.software),
            {label: _method_header(label) for label in self.labels},
            values={"template": self.codec.template.name},
            warnings=tuple(text for text in told if text),
        )

    def open(self, folder: Path, before: RunHeader | None = None) -> ServerBackend:
        source = RunningServers(self.servers, request_s=self.spec.request_timeout_s)
        return ServerBackend(source, max(self.spec.concurrency, default=1))


def make_server_setup(spec: RunSpec, *, is_offline: bool = False) -> ServerSetup:
    """Find the model's tokenizer and ask every server what it is.

    Raises:
        UserError: labels and addresses do not match, a server does not answer, or it does not serve
            the model.
    """
    labels = _labels(spec)
    roots = [server_root(url) for url in spec.urls]
    card = find_model(spec.model)
    codec = load_codec(resolve_tokenizer(card, offline=is_offline), card, spec.template)

    async def find(root: str) -> FoundServer:
        async with Client(root, request_s=spec.request_timeout_s) as client:
            return await find_server(client, card, codec, served_model=spec.served_model)

    found = map(asyncio.run, map(find, roots))
    return ServerSetup(spec, card, codec, dict(zip(labels, found, strict=True)))


def _labels(spec: RunSpec) -> tuple[str, ...]:
    """The labels of the servers, in the order of their addresses."""
    if not spec.urls:
        raise UserError(
            "--backend server needs the address of a server.",
            "Give --url http://127.0.0.1:8000 --label NAME, once for each server.",
        )
    if spec.methods:
        raise UserError(
            f"--method {','.join(spec.methods)} cannot be chosen at a running server.",
            "Name what the server does: --label NAME.",
        )
    labels = spec.labels or (("server",) if len(spec.urls) == 1 else ())
    if len(labels) != len(spec.urls):
        raise UserError(
            f"{len(spec.urls)} --url and {len(labels)} --label are given.",
            "Give each --url a --label, in the same order; the one without speculation is vanilla.",
        )
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"--label {label} is given twice.", "Give each server its own label.")
        if not label or printable(label) != label or "," in label:
            raise UserError(
                f"--label {label!r} is not a name.", "Give letters, digits, : = - and _."
            )
    return labels


def model_header(
    card: ModelCard, codec: ChatCodec, spec: RunSpec, *, served_by: tuple[str, ...]
) -> ModelHeader:
    """The model's part of the header. Which weights a server loaded is not known here."""
    return ModelHeader(
        name=card.name,
        label=f"{card.title}, served by {', '.join(served_by)}",
        source="embedded" if card.is_embedded else card.repo,
        dtype="dtype of the server" if spec.dtype == "auto" else spec.dtype,
        template_sha256=codec.template.sha256,
    )


def _method_header(label: str) -> MethodHeader:
    """The header of what a server runs: titled as the method of that name, if there is one."""
    name = label.partition(":")[0]
    known = {entry.name for entry in registry.entries() if not entry.error}
    title = registry.get(name).title if name in known else label
    return MethodHeader(name=name, title=title, options={}, is_lossless=True, weights=None)
