"""The `nbsr` command, also as `python -m nbsr_platform`. Ctrl-C is heard from the first line on, imports included."""

from __future__ import annotations


def main() -> None:
    """Entry point."""
    import sys

    from nbsr_core._extras import MissingExtraError, extra
    from nbsr_platform.base.starting import starting

    with starting():
        try:
            with extra("platform"):
                from nbsr_platform.cli.app import main as command
        except MissingExtraError as error:
            print(error, file=sys.stderr)
            sys.exit(2)
        command()


if __name__ == "__main__":
    main()
