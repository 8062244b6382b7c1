"""The entry of the command line, as `unbraid` and as `python -m unbraid`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while its modules are imported ends it without a traceback."""
    try:
        from unbraid.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)  # cli.options.INTERRUPTED, which may not be imported yet
    run()


if __name__ == "__main__":
    main()
