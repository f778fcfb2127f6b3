"""What an intervention or analysis is about: a model and what is known of it.

A :class:`Subject` is checked when it is made; what takes a Subject trusts it. A public function
such as ``route_scores(model, task)`` makes one, or takes one as its model
(:func:`subject_of`).
"""

from dataclasses import dataclass
from functools import cached_property

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked
from anchor_interp.behaviour.evaluation import Training, own_training
from anchor_interp.models.inputs import model_rows
from anchor_interp.models.number_checks import check_weights
from anchor_interp.models.transformer import HookedTransformer, check_fits, check_model
from anchor_interp.runs.run import Run
from anchor_interp.tasks.anchor import AnchorTask, check_anchors
from anchor_interp.tasks.examples import Dataset, Examples

MOST_SEED = (1 << 63) - 1


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and what is known of it.

    Raises:
        ConfigError: weights that are not finite, a model that is too small for the task, or
            examples, training or seed that do not fit.
    """

    model: HookedTransformer
    task: AnchorTask | None = None
    """The anchor task that the model was trained on."""
    examples: Examples | None = None
    """What to look at without anchors."""
    training: Training = None
    """The sequences that the model was trained on."""
    initial: HookedTransformer | None = None
    """The model before training."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_model(self.model)
        if self.task is not None:
            advice = "ai.path_patch and ai.prune take examples"
            check_fits(self.model, check_anchors(self.task, advice))
        check_weights(self.model)
        if self.initial is not None:
            check_model(self.initial, "initial")
        checked(self.seed, int, "seed", low=0, high=MOST_SEED)
        _ = self.trained_on
        if self.examples is not None:
            model_rows(self.model, self.examples)

    @classmethod
    def of_run(cls, run: Run, *, seed: int = 0) -> "Subject":
        """The model of a run's checkpoint, with the run's task if it has anchors."""
        asked = run.config.task
        task = asked if isinstance(asked, AnchorTask) else None
        training = None if task is None else run.training
        return cls(run.transformer, task, training=training, initial=run.initial, seed=seed)

    @property
    def anchor_task(self) -> AnchorTask:
        """The task of an analysis that needs one."""
        if self.task is None:
            raise ConfigError("this analysis needs the model's anchor task; give it")
        return self.task

    @cached_property
    def trained_on(self) -> Dataset | None:
        """The training sequences as examples."""
        return None if self.task is None else own_training(self.task, self.training)


def subject_of(model: HookedTransformer | Subject, task: AnchorTask | None, seed: int) -> Subject:
    """A model with its task; a subject in its place brings its own task and seed."""
    return model if isinstance(model, Subject) else Subject(model, task, seed=seed)
