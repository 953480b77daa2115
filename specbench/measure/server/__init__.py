"""A backend over HTTP: servers that stream answers, one for each method.

`stream` has the forms of requests and answers, `client` asks a server what it is, sends a request,
measures it and reads metrics, and `records` makes records of answers. `backend` runs a plan at its
loads. Each engine that can be started is a file in `engines`.
"""

from pkgutil import iter_modules

NAMES = tuple(sorted(one.name for one in iter_modules([f"{__path__[0]}/engines"])))
"""Names of the engines on the command line: the names of their files."""
