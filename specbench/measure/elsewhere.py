"""Make the setups of runs outside this process, on the workers of a Ray cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from specbench.measure.plan import SetupMaker


@contextmanager
def setup_maker(address: str) -> Iterator[SetupMaker | None]:
    """The maker of setups in the Ray cluster at an address, or None without an address.

    The connection to the cluster ends with the block.

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached.
    """
    if not address:
        yield None
        return
    from specbench.measure.cluster.connection import connected
    from specbench.measure.cluster.setup import make_cluster_setup

    with connected(address) as ray:
        yield partial(make_cluster_setup, ray)
