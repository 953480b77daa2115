"""The kinds of profiles. Each has a module, whose name is the name of the kind.

The `KIND` of a module is a `specbench.tune.kind.Kind`. A method names its kind in
`Drafter.profile`. Modules are found by name.
"""

import pkgutil

NAMES = tuple(module.name for module in pkgutil.iter_modules(__path__))
"""The names of all kinds."""
