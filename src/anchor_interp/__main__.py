"""``python -m anchor_interp``: the command line."""

from anchor_interp.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
