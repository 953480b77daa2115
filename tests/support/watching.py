"""A progress view that keeps its events."""

from specbench.measure.progress import Progress
from specbench.types import Record


class Watcher(Progress):
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.started_methods: list[str] = []
        self.messages: list[str] = []
        super().__init__(self.messages.append)

    def sample_started(self, method: str, task: str, sample_id: str) -> None:
        self.started_methods.append(method)

    def sample_finished(self, record: Record) -> None:
        self.records.append(record)
