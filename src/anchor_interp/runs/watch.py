"""The measures of weights along anybody's training.

:func:`watch` gives them to Hugging Face's ``Trainer``. Another loop calls
:func:`anchor_interp.models.complexity.weight_measures` where it logs.
"""

from typing import Any

from anchor_interp._util.schema import checked
from anchor_interp.models.complexity import weight_measures


def watch(trainer: Any, matrices: str = "*") -> None:
    """Log a model's weight measures before the first step and wherever the loss is logged.

    They pass through ``Trainer.log``, in a record of their own at the loss's step, so
    ``log_history`` and every reporter (TensorBoard, Weights & Biases) have them. The names of the
    ``matrices`` fit a pattern; an embedding of 50,000 tokens takes ten seconds a record. Each
    process needs the whole weights.

    Raises:
        ConfigError: not a ``transformers.Trainer``, or no matrix has such a name.
    """
    from transformers import Trainer, TrainerCallback

    checked(trainer, Trainer, "trainer")
    weight_measures(trainer.model, matrices)

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 0:
                self._log(state, control)

        def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            if control.should_log:
                self._log(state, control)

        on_epoch_end = on_step_end

        def _log(self, state: Any, control: Any) -> None:
            asked = control.should_log
            rows = [row for row in state.log_history if row["step"] == 0]
            first = {name: value for row in rows for name, value in row.items()}
            trainer.log(weight_measures(trainer.model, matrices, first))
            control.should_log = asked  # of the loss, which comes next

    trainer.add_callback(Watch())
