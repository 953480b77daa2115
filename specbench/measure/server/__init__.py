"""Complete requests over HTTP, with servers that stream answers. Each method has a server.

`running_setup` sets up a run on servers that are already running, and `started_setup` a run on
servers that are started for it. `find` asks a server what it is. `client` sends it a request and
times the answer, which `answer_reader` puts together. `records` makes answers into records.
`servers` holds the servers of a run, and `backend` completes a plan in the order of `blocks`.
Each engine that can be started is a file in `engines`.
"""

from pkgutil import iter_modules

NAMES = tuple(sorted(module.name for module in iter_modules([f"{__path__[0]}/engines"])))
"""The names of the engines on the command line, which are the names of their files."""
