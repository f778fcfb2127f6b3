"""How the complexity of a run's weights changes along its training."""

from dataclasses import dataclass

from anchor_interp.models.complexity import complexity
from anchor_interp.runs.run import Run


@dataclass(frozen=True, eq=False)
class Development:
    """The complexity of named matrices, a row for each step."""

    steps: tuple[int, ...]
    names: tuple[str, ...]
    stable_rank: tuple[tuple[float | None, ...], ...]
    effective_rank: tuple[tuple[float | None, ...], ...]
    condensation: tuple[tuple[float | None, ...], ...]


def development_of(run: Run) -> Development:
    """The measures of every weight matrix at every checkpoint of a run."""
    matrices = run.at_every_step(lambda model: complexity(model).matrices)
    names = tuple(
        entry.name if entry.layer is None else f"{entry.name}, layer {entry.layer}"
        for entry in next(iter(matrices.values()))
    )
    numbers = {
        measure: tuple(tuple(getattr(e, measure) for e in entries) for entries in matrices.values())
        for measure in ("stable_rank", "effective_rank", "condensation")
    }
    return Development(tuple(matrices), names, **numbers)
