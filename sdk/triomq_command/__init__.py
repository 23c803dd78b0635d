"""The entry point of the command ``triomq``, separate from the package so that Ctrl-C is quiet from the start.

Importing :mod:`triomq` takes half a second, and an interrupt meanwhile would print a traceback.  This module imports
only :mod:`sys` before it can catch one.  The commands are in ``triomq._cli``; the list of commands and the servers'
commands need none of them.
"""

import sys


def main() -> None:
    """Run the command line; the process ends here.

    Exit codes: 0 done, 1 it could not be done, 2 wrong usage, 130 interrupted.
    """
    try:
        from importlib import import_module  # by name: the commands import this package

        from triomq_command.garbage import importing
        from triomq_command.overview import show

        with importing():
            code = show(sys.argv[1:])
        if code is not None:
            sys.exit(code)
        code = import_module("triomq_command.servers").run(sys.argv[1:])
        if code is not None:
            sys.exit(code)
        if sys.argv[1:2] == ["run"] and sys.argv[2:3] not in (["-h"], ["--help"]):
            # Its command's process is forked before anything large is imported.
            try:
                run_command = import_module("triomq_testing.command").run
            except ImportError:
                pass  # the command line below reports what is not installed
            else:
                run_command.main(sys.argv[2:], prog_name="triomq run")
        with importing():
            client = import_module("triomq.__main__")
        client.main()
    except KeyboardInterrupt:
        sys.exit(130)
