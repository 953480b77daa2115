"""The drafters of a run's methods, also of methods that cannot be built."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from specbench.errors import MethodFault, SpecbenchError, containing
from specbench.measure.base import outer_clock
from specbench.measure.local.peak_memory import MemoryLedger

if TYPE_CHECKING:
    from specbench.engine.drafter import Drafter
    from specbench.engine.target import Target
    from specbench.measure.methods import RunMethod


def build_drafters(
    target: Target,
    methods: Iterable[RunMethod],
    ledger: MemoryLedger,
    seconds: dict[str, float] | None = None,
) -> dict[str, Drafter]:
    """The drafter of every method by the method's label. The ledger counts what each one holds.

    `seconds` receives the time that building each one took.

    A method whose build fails is there too: it fails in every sample, with the reason.

    Raises:
        SpecbenchError: a method refuses its options or weights.
    """
    from specbench.engine.drafter import BuildContext, Drafter

    drafters: dict[str, Drafter] = {}
    for one in methods:
        began = outer_clock()
        with ledger.holder(one.label):
            try:
                with containing(f"Method {one.label!r} is broken"):
                    drafter = one.method.build(one.options, BuildContext(target, one.weights))
                    if not isinstance(drafter, Drafter):
                        raise TypeError(f"build returned a {type(drafter).__name__}, no Drafter")
            except MethodFault as fault:
                drafter = broken_drafter(fault.message)
            drafters[one.label] = drafter
        if seconds is not None:
            seconds[one.label] = outer_clock() - began
    return drafters


def broken_drafter(reason: str) -> Drafter:
    """A drafter that fails with this reason whenever it is used."""
    from specbench.engine.drafter import Drafter

    class Broken(Drafter):
        @property
        def needs(self) -> Any:  # type: ignore[override]  # what a completion asks for first
            raise SpecbenchError(reason)

    return Broken()


def layer_inputs(drafter: Drafter) -> tuple[int, ...]:
    """The layers of the target whose inputs a drafter reads; none if it does not say."""
    with suppress(Exception), containing("The needs of a drafter"):  # its samples will fail
        return tuple(drafter.needs.layer_inputs)
    return ()
