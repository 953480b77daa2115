"""Hold what all setups with servers share: the model's tokenizer, and the servers by label."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specbench.log.methods import MethodHeader
from specbench.log.model import FileHeader, ModelHeader
from specbench.measure.base import SetupInfo
from specbench.measure.methods import BASELINE
from specbench.measure.spec import RunSpec
from specbench.models.cards import ModelCard
from specbench.models.chat import ChatCodec


@dataclass(frozen=True)
class ServedSetup:
    """A model's tokenizer, and the servers that answer for the model."""

    spec: RunSpec
    """The options of the run, as the user gave them."""
    card: ModelCard
    """The model."""
    codec: ChatCodec
    """Chats to tokens and back."""
    servers: Mapping[str, Any]
    """The servers by label."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in table order, in which the baseline is first."""
        return tuple(sorted(self.servers, key=lambda label: label != BASELINE))

    def make_info(
        self,
        served_by: Iterable[str],
        methods: dict[str, MethodHeader],
        warnings: Iterable[str],
        *,
        files: dict[str, FileHeader],
        device: str = "",
    ) -> SetupInfo:
        """The setup's part of the header.

        Args:
            served_by: names of the servers' software.
            methods: the header of each server's method, by label.
            warnings: warnings in addition to the codec's.
            files: the model's files; empty for running servers, whose files are unknown.
            device: the device of servers that the run starts; empty for running servers.
        """
        template = self.codec.template
        model = ModelHeader(
            name=self.card.name,
            label=f"{self.card.title}, served by {', '.join(served_by)}",
            source="embedded" if self.card.is_embedded else self.card.repo,
            dtype="dtype of the server" if self.spec.dtype == "auto" else self.spec.dtype,
            template_sha256=template.sha256,
            files=files,
            chat=self.codec.describe(),
        )
        values = {"template": template.name}  # options of the run that the setup decides
        if device:
            values["device"] = device
        return SetupInfo(model, methods, values, (*self.codec.warnings, *warnings))
