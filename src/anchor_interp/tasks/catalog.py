"""The named tasks of the package, and those that a user names."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import TypeVar

from anchor_interp._util.schema import check_name, checked, digest
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.registry import MODULES, REALISTIC
from anchor_interp.tasks.task import Task

T = TypeVar("T")


class Catalog(Mapping[str, T]):
    """Values by name, each made by its function when it is first asked for."""

    def __init__(self, makers: Mapping[str, Callable[[], T]]) -> None:
        self._makers, self._made = dict(makers), dict[str, T]()

    def __getitem__(self, name: str) -> T:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def add(self, name: str, value: T) -> None:
        """Put in a value, in the place of another one of this name."""
        self._makers[name] = lambda: value
        self._made[name] = value


def _of_module(kind: str, name: str) -> Task:
    task: Task = import_module(MODULES[kind]).TASKS[name]
    return task


NAMED_TASKS: Catalog[Task] = Catalog(
    {
        name: partial(_of_module, kind, name)
        for kind, names in ({"": tuple(TASKS)} | dict(REALISTIC)).items()
        for name in names
    }
)
"""Every named task: the package's, whose modules are loaded when one is asked for, and those of
:func:`name_task`."""


def name_task(name: str, task: Task) -> None:
    """Make a task of one's own known under a name, in this process, as a module of tasks may do."""
    NAMED_TASKS.add(name, checked(task, Task, "task"))


def named_task(name: str) -> Task:
    """The task of a name; the error for an unknown one lists the known ones."""
    check_name(name, NAMED_TASKS, "no task")
    return NAMED_TASKS[name]


def task_name(task: Task) -> str:
    """The name of a named task; for another task, a digest, after its kind if it has one."""
    custom = f"{'custom' if isinstance(task, AnchorTask) else task.kind}-{digest(task)[:8]}"
    return next((name for name, known in NAMED_TASKS.items() if known == task), custom)
