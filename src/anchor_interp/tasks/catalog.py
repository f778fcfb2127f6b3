"""The named tasks of the package, and those that a user names."""

from collections import UserDict
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from anchor_interp._util.schema import check_name, checked, digest
from anchor_interp.tasks.anchor import TASKS, AnchorTask
from anchor_interp.tasks.registry import MODULES, REALISTIC
from anchor_interp.tasks.task import Task

T = TypeVar("T")


class Catalog(UserDict[str, T]):
    """Values by name; one that is given as a ``partial`` is made when it is first asked for."""

    def __getitem__(self, name: str) -> T:
        value: Any = super().__getitem__(name)
        if isinstance(value, partial):
            value = self[name] = value()
        made: T = value
        return made


def _realistic(kind: str, name: str) -> Task:
    task: Task = import_module(MODULES[kind]).TASKS[name]
    return task


_NAMED: dict[str, Any] = {
    **TASKS,
    **{n: partial(_realistic, kind, n) for kind, names in REALISTIC.items() for n in names},
}
NAMED_TASKS: Catalog[Task] = Catalog(_NAMED)
"""Every named task: the package's, whose modules are loaded when one is asked for, and those of
:func:`name_task`."""


def name_task(name: str, task: Task) -> None:
    """Make a task of one's own known under a name, in this process, as a module of tasks may do."""
    NAMED_TASKS[name] = checked(task, Task, "task")


def named_task(name: str) -> Task:
    """The task of a name; the error for an unknown one lists the known ones."""
    check_name(name, NAMED_TASKS, "no task")
    return NAMED_TASKS[name]


def task_name(task: Task) -> str:
    """The name of a named task; for another task, a digest, after its kind if it has one."""
    custom = f"{'custom' if isinstance(task, AnchorTask) else task.kind}-{digest(task)[:8]}"
    others = {name for kind in REALISTIC if kind != task.kind for name in REALISTIC[kind]}
    own = (name for name in NAMED_TASKS if name not in others)  # so that no other kind is loaded
    return next((name for name in own if NAMED_TASKS[name] == task), custom)
