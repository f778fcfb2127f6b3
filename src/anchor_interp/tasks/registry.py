"""The kinds of tasks: how a configuration finds the class of its task.

The package's classes are found by :data:`MODULES` and loaded when they are first asked for. A
user's class is known once its module is imported. A command or a worker imports the modules and
files that ``ANCHOR_INTERP_TASKS`` names.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown

TASKS_VARIABLE = "ANCHOR_INTERP_TASKS"
"""The environment variable with modules or files of further tasks, separated as paths are."""
TaskClass = type[Any]
"""A subclass of :class:`anchor_interp.tasks.task.Task`, which this module is imported by."""
REALISTIC: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "scan": ("scan-turn-left", "scan-jump", "scan-length", "scan-simple"),
        "cogs": ("cogs", "cogs-official"),
        "addition": (
            "addition", "addition-random", "addition-100", "addition-100-random",
        ),
        "prontoqa": ("prontoqa-faithful", "prontoqa-balanced"),
        "corpus": ("corpus-code", "corpus-prose", "corpus-both"),
    }
)  # fmt: skip
"""The kinds of the room ``realistic``, each of the module of its name, with the names of
its tasks (``TASKS`` of the module)."""
MODULES: Mapping[str, str] = MappingProxyType(
    {"": "anchor_interp.tasks.anchor"}
    | {kind: f"anchor_interp.realistic.{kind}" for kind in REALISTIC}
)
"""The module of each kind of the package; anchor tasks have the empty text."""
CLASSES: dict[str, TaskClass] = {}
"""The class of each kind that is loaded."""


def register(cls: TaskClass, kind: str) -> None:
    """Make a class known; ConfigError if another file or name has its kind."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    place = str(Path(file).resolve()) if isinstance(file, str) else cls.__module__
    cls._origin = (place, cls.__qualname__)
    if kind in MODULES and kind not in CLASSES and cls.__module__ != MODULES[kind]:
        import_module(MODULES[kind])  # the package's own class has the kind already
    known = CLASSES.get(kind)
    if known is not None and known._origin != cls._origin:
        place, name = known._origin
        raise ConfigError(f"{kind!r} is the kind of the task {name} in {place}; choose another")
    CLASSES[kind] = cls


def class_of(data: Mapping[str, Any]) -> TaskClass:
    """The class of a task's JSON object; ConfigError if no module of that kind is imported."""
    kind = checked(data.get("kind", ""), str, "task.kind")
    if kind not in CLASSES:
        import_module(MODULES[kind]) if kind in MODULES else import_further_tasks()
    if kind not in CLASSES:
        known = ", ".join(sorted(filter(None, CLASSES.keys() | MODULES.keys())))
        advice = f"import the module of your own task, or name its file in {TASKS_VARIABLE}"
        raise ConfigError(f"task.kind is {shown(kind)}; known: {known}; {advice}")
    return CLASSES[kind]


def import_further_tasks() -> None:
    """Import what :data:`TASKS_VARIABLE` names; ConfigError if that fails."""
    for name in _named():
        import_tasks(name)


def further_tasks() -> tuple[str, ...]:
    """The modules and files that another process must import to know the tasks of this one."""
    given = [str(Path(name).resolve()) if is_file(name) else name for name in _named()]
    for cls in CLASSES.values():
        place, _ = cls._origin
        if not is_ours(cls) and is_file(place):
            given.append(cls.__module__ if "." in cls.__module__ else place)
    return tuple(dict.fromkeys(given))


def import_tasks(name: str) -> None:
    """Import a module or a file; ConfigError if that fails."""
    try:
        if is_file(name):
            spec: Any = importlib.util.spec_from_file_location(f"_task_{Path(name).stem}", name)
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            import_module(name)
    except Exception as error:
        text = f"cannot import the tasks of {name} ({type(error).__name__}: {error})"
        raise ConfigError(f"{text}; correct it, or leave it out of {TASKS_VARIABLE}") from error


def _named() -> list[str]:
    return list(filter(None, os.environ.get(TASKS_VARIABLE, "").split(os.pathsep)))


def is_file(name: str) -> bool:
    """Whether the name of further tasks is a file's, not a module's."""
    return name.endswith(".py")


def is_ours(cls: TaskClass) -> bool:
    """Whether a class is one of this package's."""
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]
