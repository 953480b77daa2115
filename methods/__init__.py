"""The methods: one module each, imported as `specbench.methods`. Shared modules begin with `_`.

A module holds `METHOD` (a `specbench.engine.drafter.Method`), the frozen dataclass of its options
and its drafter, and imports only `specbench.errors`, `specbench.types` and `specbench.engine`.
"""
