"""A drafter around another one."""

from specbench.engine.drafter import Drafter


class WrappedDrafter(Drafter):
    """Announces the same as the drafter that it wraps, so that steps have the same recordings."""

    def __init__(self, drafter: Drafter) -> None:
        """Take over a drafter's needs, acceptance rule, and the sizes and shapes of its trees."""
        self.needs = drafter.needs
        self.rule = drafter.rule
        self.tree_sizes = drafter.tree_sizes
        self.tree_depth = drafter.tree_depth
        self.has_chains = drafter.has_chains
        self._drafter = drafter
