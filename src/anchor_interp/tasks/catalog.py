"""The named tasks of the package. Importing this module makes all its classes known."""

from collections.abc import Mapping
from types import MappingProxyType

from anchor_interp._util.schema import check_name, checked, digest
from anchor_interp.realistic import addition, cogs, corpus, prontoqa, scan
from anchor_interp.tasks import anchor
from anchor_interp.tasks.task import Task

_MODULES = (anchor, scan, cogs, addition, prontoqa, corpus)
_NAMED: dict[str, Task] = {name: task for module in _MODULES for name, task in module.TASKS.items()}
NAMED_TASKS: Mapping[str, Task] = MappingProxyType(_NAMED)
"""Every named task: those that the modules above name, and those of :func:`name_task`."""


def name_task(name: str, task: Task) -> None:
    """Make a task of one's own known under a name, in this process, as a module of tasks may do."""
    _NAMED[name] = checked(task, Task, "task")


def named_task(name: str) -> Task:
    """The task of a name; the error for an unknown one lists the known ones."""
    check_name(name, NAMED_TASKS, "no task")
    return NAMED_TASKS[name]


def task_name(task: Task) -> str:
    """The name of a named task; for another task, a digest, after its kind if it has one."""
    custom = f"{'custom' if task.anchored else task.kind}-{digest(task)[:8]}"
    return next((name for name, known in NAMED_TASKS.items() if known == task), custom)
