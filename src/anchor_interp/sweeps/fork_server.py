"""A process that has loaded PyTorch and forks workers, which then load nothing.

The server has one thread when it forks and has not touched a GPU, so this is safe on Linux for
work on the CPU; elsewhere a worker is a new process. Server and workers end when the program that
started the server does. If the server is killed, its workers checkpoint and end.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

from anchor_interp.tasks.registry import TASKS_VARIABLE, further_tasks

_REAP_SECONDS = 0.5
_LONGEST = 1 << 16  # bytes of a message
_PROGRAM = """
import json, sys
setup = json.loads(sys.argv[1])
sys.path[:] = setup.pop("import_path")
from anchor_interp.sweeps.{module} import {function}
{function}(**setup)
"""


def start_python(
    module: str, function: str, setup: dict[str, Any], stdin: int, *passed: int
) -> subprocess.Popen[bytes]:
    """Call a function of this room in a new process with one thread.

    It imports nothing of this program. Ctrl-C does not reach it: the program decides what to do.
    """
    # one thread that sleeps while it waits, from before torch is loaded
    environment = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | {"OMP_NUM_THREADS": "1"}
    environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    environment[TASKS_VARIABLE] = os.pathsep.join(further_tasks())
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # for these
    setup = setup | {"parent": os.getpid(), "import_path": list(map(str, sys.path))}
    program = _PROGRAM.format(module=module, function=function)
    # a process starts with those signals blocked that its parent blocks
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(setup)],
            stdin=stdin, pass_fds=passed, env=environment,
        )  # fmt: skip
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class ForkServer:
    """The server as its program sees it; it loads PyTorch while the program goes on."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        try:
            self._process = start_python("fork_server", "serve", {}, theirs.fileno())
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._messages = self._socket.makefile("rb")
        self._n_forked = 0
        self._codes: dict[int, int] = {}
        self.close = weakref.finalize(self, _close, self._process, self._socket, self._messages)
        """Let all workers checkpoint, and wait until they and the server have ended."""

    def is_alive(self) -> bool:
        """Whether it can still fork."""
        return self._process.poll() is None

    def fork(self, setup: dict[str, Any], stdin: int, reports: int) -> Callable[[], int | None]:
        """Start a worker; returns what waits for its exit code, None if the server has died."""
        number, self._n_forked = self._n_forked, self._n_forked + 1
        message = json.dumps([number, setup]).encode()
        with contextlib.suppress(OSError):  # the server has died, and both pipes end
            socket.send_fds(self._socket, [message], [stdin, reports])
        return lambda: self._code(number)

    def _code(self, number: int) -> int | None:
        while number not in self._codes:
            try:
                ended, code = json.loads(self._messages.readline())
            except (OSError, ValueError):  # the server has died or is closed
                return None
            self._codes[ended] = code
        return self._codes[number]


def _close(process: subprocess.Popen[bytes], connection: socket.socket, messages: Any) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
    process.terminate()  # in case it is still loading
    process.wait()
    messages.close()
    connection.close()


def serve(parent: int) -> None:
    """The server's process: fork a worker for each message on the socket that is its stdin."""
    for needed in ("runs.train", "sweeps.train_batch"):  # with them, all that a worker needs
        importlib.import_module(f"anchor_interp.{needed}")

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # it ends when the socket does
    gc.freeze()  # a collection would copy the pages that workers share
    connection, workers = socket.socket(fileno=0), dict[int, int]()
    while os.getppid() == parent:
        if wait([connection], _REAP_SECONDS):
            try:
                message, files, *_ = socket.recv_fds(connection, _LONGEST, 2)
                number, setup = json.loads(message)
            except (OSError, ValueError):  # the program has closed it, or has died
                break
            workers[_fork(setup, *files)] = number
        _reap(workers, connection, os.WNOHANG)
    for process in workers:
        os.kill(process, signal.SIGTERM)
    _reap(workers, connection, 0)


def _fork(setup: dict[str, Any], jobs: int, reports: int) -> int:
    """Fork a worker; returns its process."""
    server = os.getpid()
    if process := os.fork():
        os.close(jobs)
        os.close(reports)
        return process
    code: Any = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        os.dup2(jobs, 0)  # in place of the server's socket
        os.close(jobs)
        from anchor_interp.sweeps.worker import work

        work(**setup, reports=reports, parent=server)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


def _reap(workers: dict[int, int], connection: socket.socket, options: int) -> None:
    """Tell the program of workers that have ended."""
    for process in list(workers):
        ended, status = os.waitpid(process, options)
        if ended:
            message = json.dumps([workers.pop(process), os.waitstatus_to_exitcode(status)])
            with contextlib.suppress(OSError):  # the program has died
                connection.send(message.encode() + b"\n")
