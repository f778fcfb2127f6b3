"""The connection to a Ray cluster."""

import contextlib
import functools
import importlib
import logging
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import anchor_interp
from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import shown

_ANSWER_SECONDS = 10.0


def import_ray() -> Any:
    """Ray, told to print nothing about dead workers and to report nothing about its use.

    Raises:
        ConfigError: Ray is not installed.
    """
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(
            "the engine ray needs a package that is not installed: pip install 'anchor-interp[ray]'"
        ) from error


def first_line(error: Exception | None) -> str:
    """The first line of an error of Ray's."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


def check_answers(address: str | None) -> None:
    """Refuse an address where nothing listens; Ray itself would try for minutes.

    Raises:
        ConfigError: says why it cannot be reached.
    """
    host, _, port = (address or "").rpartition(":")
    if host and port.isdecimal():  # Ray knows what auto and the like mean
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
        except (OSError, OverflowError, UnicodeError) as error:
            raise _unreachable(address, error) from error


def _unreachable(address: str | None, error: Exception) -> ConfigError:
    where = "on this machine" if address is None else f"at the address {shown(address)}"
    return ConfigError(
        f"no Ray cluster can be reached {where}: {first_line(error).rstrip('.')}; start one with "
        "ray start --head, or give the HOST:PORT of its head"
    )


@contextlib.contextmanager
def connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to a cluster; a connection that exists is used and kept.

    Raises:
        ConfigError: the cluster cannot be reached, or this process is connected to another one.
    """
    if ray.is_initialized():
        if address is not None:
            raise ConfigError(
                f"address is {shown(address)}, but this process is connected to a Ray cluster "
                "already; leave the address out, or call ray.shutdown() first"
            )
        yield
        return
    package = {"py_modules": [anchor_interp], "excludes": ["specimens/", "__pycache__/"]}
    connect = functools.partial(
        ray.init, log_to_driver=False, configure_logging=False, runtime_env=package
    )
    logger, on_sigterm = logging.getLogger("ray"), signal.getsignal(signal.SIGTERM)
    level, mode = logger.level, os.environ.get("RAY_AUTH_MODE")
    logger.setLevel(logging.ERROR)
    try:
        try:
            connect(address=address or "auto")
        except ConnectionError:
            if address is not None:
                raise
            connect(address="local", include_dashboard=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _unreachable(address, error) from error
    finally:
        logger.setLevel(level)
        with contextlib.suppress(ValueError):  # raised outside the main thread
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray replaces it
    try:
        yield
    finally:
        ray.shutdown()
        if mode is None:  # Ray sets it when it starts a cluster
            os.environ.pop("RAY_AUTH_MODE", None)
