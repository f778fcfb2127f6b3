"""The command line that the ledger and the scripts of the papers' sections share."""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from anchor_interp._util.errors import AnchorInterpError, ConfigError

from .studies import SCALES
from .tables import existing_folder


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the options")


def parser(program: str, description: str) -> argparse.ArgumentParser:
    """What to train, where and with what."""
    found = _Parser(program, description=description, allow_abbrev=False)
    add = found.add_argument
    add("--out", type=Path, default=Path("runs/papers"), help="folder of the runs (runs/papers)")
    scales = "tiny for two cores of a laptop, small for one GPU, paper for the papers' own runs"
    add("--scale", choices=tuple(SCALES), default="tiny", help=scales)
    add("--tables", type=Path, help="tables whose finished runs need no training (OUT/tables)")
    add("--workers", type=int, help="runs at a time; all usable cores, or one on a GPU")
    add("--device", default="auto", help="where runs train: auto, cpu, cuda, cuda:1, ...")
    add("--judge", action="store_true", help="train nothing: use the tables that are there")
    return found


def tables_folder(asked: argparse.Namespace) -> Path:
    """The folder of the tables, which has to exist if it was named."""
    return asked.out / "tables" if asked.tables is None else existing_folder(asked.tables)


def exit_code(name: str, work: Callable[[], int]) -> int:
    """The exit code of a command; an error is one line on standard error."""
    logger = logging.getLogger("anchor_interp")
    handler, level = logging.StreamHandler(), logger.level
    handler.setFormatter(logging.Formatter(f"{name}: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        return work()
    except KeyboardInterrupt:
        logger.error("interrupted; what was done is kept, and the same command resumes")
        return 130
    except (AnchorInterpError, OSError) as error:
        logger.error(error)
        return error.exit_code if isinstance(error, AnchorInterpError) else 1
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
