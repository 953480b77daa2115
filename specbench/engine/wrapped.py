"""A drafter that wraps another drafter."""

from specbench.engine.drafter import Drafter


class WrappedDrafter(Drafter):
    """Declares the same properties as the drafter it wraps, so steps have the same recordings."""

    def __init__(self, drafter: Drafter) -> None:
        """Copy a drafter's needs, its acceptance rule, and the sizes and shapes of its trees."""
        self.needs = drafter.needs
        self.rule = drafter.rule
        self.tree_sizes = drafter.tree_sizes
        self.tree_depth = drafter.tree_depth
        self.has_chains = drafter.has_chains
        self._drafter = drafter
