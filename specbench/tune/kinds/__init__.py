"""Kinds of profiles, one module each: the name of the module is the name of the kind.

A module has a `KIND`, a `specbench.tune.kind.Kind`. A method that has the kind names it in
`Drafter.profile`. Modules are found by name.
"""

import pkgutil

NAMES = tuple(module.name for module in pkgutil.iter_modules(__path__))
"""The names of all kinds."""
