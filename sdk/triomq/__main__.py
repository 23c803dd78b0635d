"""``python -m triomq``: the command line, or what to install for it.

The commands are in ``triomq._cli``, which needs the extra ``cli``.  The script ``triomq`` starts in the package
``triomq_command``, which comes here.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; the process ends here.

    Exit codes: 0 done, 1 it could not be done, 2 wrong usage, 130 interrupted.
    """
    try:
        from triomq_command.garbage import importing

        with importing():
            from triomq._cli.messages import run
    except KeyboardInterrupt:
        sys.exit(130)
    except ImportError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"the command line needs the package {error.name}: pip install 'triomq[cli]'")
    try:
        code = run()
    except KeyboardInterrupt:
        code = 130  # it came between the command's own places for it
    sys.exit(code)


if __name__ == "__main__":
    main()
