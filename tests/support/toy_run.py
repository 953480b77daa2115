"""A run of a small target whose drafters are given as objects, as the audit sees it."""

from collections.abc import Mapping, Sequence

import torch

from specbench.audit.drafters import Plain
from specbench.audit.model import RunModel
from specbench.audit.results import Audit
from specbench.audit.run import audit
from specbench.audit.white_box import Effort
from specbench.engine.decode import decode
from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.log.run import Run
from specbench.types import Record, RecordKey, Request, Sampling
from tests.analysis.run_factory import header, make_run


class ToyModel(RunModel):
    """A target and its methods. Their run has `prompts`, a budget and consecutive seeds."""

    def __init__(
        self,
        target: Target,
        drafters: Mapping[str, Drafter],
        prompts: Sequence[tuple[int, ...]],
        *,
        budget: int = 16,
        sampling: Sampling | None = None,
        first_seed: int = 0,
    ) -> None:
        self.target, self._drafters = target, {"vanilla": Plain(), **drafters}
        self.prompts, self._budget, self._first_seed = prompts, budget, first_seed
        self._sampling = sampling or Sampling(1.0)
        self.dtype = "float32" if target.dtype == torch.float64 else str(target.dtype)[6:]
        self.device = "cpu"

    def run(self, *temperatures: float, has_vanilla: bool = True) -> Run:
        """The run of vanilla and all methods, one record after the other."""
        drafters = {
            m: drafter for m, drafter in self._drafters.items() if has_vanilla or m != "vanilla"
        }
        records = []
        for temperature in temperatures:
            for number, prompt in enumerate(self.prompts):
                for method, drafter in drafters.items():
                    key = RecordKey(method, temperature, "gsm8k", str(number), 0, 0)
                    done = decode(self.target, drafter, self._request(number, temperature))
                    records.append(
                        Record(key, "ok", len(prompt), done.token_ids, "", done.stop_reason,
                               0.1, 0.1, done.accept_lengths, done.num_nodes)
                    )  # fmt: skip
        return make_run(records, header([*drafters], ("gsm8k",), temperatures))

    def audited(self, run: Run, effort: Effort, *, is_recheck: bool = False) -> Audit:
        return audit(run, lambda _: self, is_recheck=is_recheck, effort=effort, say=lambda _: None)

    def prompt_ids(self, record: Record) -> tuple[int, ...]:
        return self.prompts[int(record.key.sample_id)]

    def request(self, record: Record) -> Request:
        return self._request(int(record.key.sample_id), record.key.temperature)

    def _request(self, number: int, temperature: float) -> Request:
        sampling, seed = self.sampling(temperature), self._first_seed + number
        return Request(self.prompts[number], self._budget, sampling, seed=seed)

    def drafter(self, method: str) -> Drafter:
        return self._drafters[method]

    def complete(self, method: str, request: Request) -> tuple[int, ...]:
        return decode(self.target, self._drafters[method], request).token_ids

    def sampling(self, temperature: float) -> Sampling:
        usual = self._sampling
        return Sampling(temperature, usual.top_p, usual.top_k) if temperature else Sampling()
