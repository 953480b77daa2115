"""Set up a run on servers that are already running, by asking each of them what it is."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specbench import registry
from specbench.errors import UserError, printable
from specbench.log.header import RunHeader
from specbench.log.methods import MethodHeader
from specbench.measure.base import SetupInfo
from specbench.measure.methods import BASELINE
from specbench.measure.server.address import server_root
from specbench.measure.server.backend import ServerBackend
from specbench.measure.server.baseline import refuse_drafts
from specbench.measure.server.client import Client
from specbench.measure.server.find import FoundServer, find_server
from specbench.measure.server.served_setup import ServedSetup
from specbench.measure.server.servers import RunningServers
from specbench.measure.spec import RunSpec
from specbench.models.chat import load_codec
from specbench.models.hub import resolve_tokenizer

NO_BASELINE_WARNING = (
    "No server is labelled vanilla, so there is no speedup. Start the same server without "
    "speculation beside it, and give both: --url A --label vanilla --url B --label NAME."
)
CHAT_WARNING = (
    "{} accept no tokens as prompts: the chat was sent as messages, and the server's own template "
    "made the prompt."
)
TEXT_WARNING = (
    "{} send no token ids: the text was tokenised, which can differ from the tokens that were "
    "generated. Tokens are counted by the server."
)


@dataclass(frozen=True)
class RunningSetup(ServedSetup):
    """Running servers by label, with the tokenizer of their model."""

    servers: Mapping[str, FoundServer]
    no_checkpoint = ()

    @property
    def title(self) -> str:
        """The model and its servers, in words."""
        return f"{self.card.title} ({', '.join(self.software)})"

    @cached_property
    def software(self) -> tuple[str, ...]:
        """The names of the servers' software, without duplicates."""
        return tuple(dict.fromkeys(server.header.software for server in self.servers.values()))

    @property
    def context(self) -> int | None:
        """The length of the shortest context in tokens, or None if no server reports one."""
        contexts = [server.context for server in self.servers.values() if server.context]
        return min(contexts, default=None)

    def describe(self) -> SetupInfo:
        methods = {label: _method_header(label, self.servers[label]) for label in self.labels}
        return self.make_info(self.software, methods, self._warnings(), files={})

    def open(self, folder: Path, before: RunHeader | None = None) -> ServerBackend:
        servers = RunningServers(self.servers, request_s=self.spec.request_timeout_s)
        return ServerBackend(servers, max(self.spec.concurrency, default=1))

    def _warnings(self) -> list[str]:
        """Warnings about what the servers lack for a full comparison."""
        servers = self.servers.items()
        # Labels of servers that take prompts as messages, and of servers that send no token ids.
        chat_labels = [label for label, server in servers if not server.protocol.takes_tokens]
        text_labels = [label for label, server in servers if not server.header.sends_token_ids]
        warnings: list[str] = []
        if BASELINE not in self.servers:  # vanilla, with which others are compared
            warnings.append(NO_BASELINE_WARNING)
        if chat_labels:
            warnings.append(CHAT_WARNING.format(f"The servers of {', '.join(chat_labels)}"))
        if text_labels:
            warnings.append(TEXT_WARNING.format(f"The servers of {', '.join(text_labels)}"))
        return warnings


def make_running_setup(spec: RunSpec, *, is_offline: bool = False) -> RunningSetup:
    """Find the model's tokenizer, and ask every server what it is.

    The setup has the servers by label, one per address.

    Args:
        spec: the run's options: the servers' addresses (`urls`) and labels, the model's card, the
            name of its chat template, the model's name at the servers (empty if not given), and the
            seconds that a request may take (None for the default).
        is_offline: True to download no tokenizer.

    Raises:
        UserError: labels and addresses do not match, a server does not answer, it does not serve
            the model, or the baseline's server makes drafts.
    """
    labels = _labels(spec)  # one per address, in the same order
    roots = [server_root(url) for url in spec.urls]  # addresses without "/v1"
    card = spec.card
    folder = resolve_tokenizer(card, offline=is_offline)
    codec = load_codec(folder, card, spec.template, spec.template_args)  # chats to tokens and back

    async def find(root: str) -> FoundServer:
        """Ask the server at an address what it is."""
        async with Client(root, request_s=spec.request_timeout_s) as client:
            return await find_server(client, card, codec, served_model=spec.served_model)

    servers = {label: asyncio.run(find(root)) for label, root in zip(labels, roots, strict=True)}
    for label, server in servers.items():
        refuse_drafts(label, server.num_drafts, "for a short answer")  # raises for the baseline's
    return RunningSetup(spec, card, codec, servers)


def _labels(spec: RunSpec) -> tuple[str, ...]:
    """The labels of the running servers, in the order of their addresses.

    `spec` has the run's options: the addresses (`urls`), the `labels`, and the `methods` that the
    user named. A single server without a label is called "server".

    Raises:
        UserError: there is no address, a method is named (a running server has its own), labels and
            addresses differ in number, or a label is given twice or is not fit for a table.
    """
    if not spec.urls:
        raise UserError(
            "--backend server needs the address of a server.",
            "Give --url http://127.0.0.1:8000 --label NAME, once for each server.",
        )
    if spec.methods:
        raise UserError(
            f"--method {','.join(spec.methods)} cannot be chosen at a running server.",
            "Name the server's method: --label NAME.",
        )
    labels = spec.labels
    if not labels and len(spec.urls) == 1:
        labels = ("server",)
    if len(labels) != len(spec.urls):
        raise UserError(
            f"{len(spec.urls)} --url and {len(labels)} --label are given.",
            "Give each --url a --label, in the same order; name the plain server vanilla.",
        )
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"--label {label} is given twice.", "Give each server its own label.")
        # Labels appear in tables, so control characters are not allowed, and in lists that are
        # separated by commas, so commas are not allowed either.
        if not label or printable(label) != label or "," in label:
            raise UserError(
                f"--label {label!r} is not a name.", "Give letters, digits, : = - and _."
            )
    return labels


def _method_header(label: str, server: FoundServer) -> MethodHeader:
    """The header of a server's method.

    If the label names a method of specbench, with or without options, the header has the method's
    title, else it has the label. The method is lossless unless the server's settings say otherwise.
    """
    name = label.partition(":")[0]  # without options
    title = label
    if any(entry.name == name and not entry.error for entry in registry.entries()):
        title = registry.get(name).title
    return MethodHeader(
        name=name, title=title, options={}, is_lossless=not server.is_lossy, weights=None
    )
