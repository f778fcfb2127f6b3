"""The measures of weights along anybody's training.

:func:`watch` gives them to Hugging Face's ``Trainer``; another loop logs ``ai.weight_measures``.
"""

import logging
from fnmatch import fnmatchcase
from typing import Any

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.schema import checked, shown
from anchor_interp.models.complexity import left_out, weight_measures

_LOGGER = logging.getLogger(__name__)


def watch(trainer: Any, matrices: str = "*") -> None:
    """Log a model's weight measures before the first step and in every record of the loss.

    ``log_history`` and every reporter (TensorBoard, Weights & Biases) have them. The names of the
    ``matrices`` fit a pattern; a second call with the same one changes nothing. An embedding of
    50,000 tokens takes ten seconds a record. Each process needs the whole weights. Warnings name
    matrices that are not measured, and the first record without measures: weights are not finite.

    Raises:
        ConfigError: not a ``transformers.Trainer``, or no matrix has such a name.
    """
    from transformers import Trainer, TrainerCallback

    weight_measures(checked(trainer, Trainer, "trainer").model, matrices)
    if any(getattr(x, "watched", None) == matrices for x in trainer.callback_handler.callbacks):
        return
    if names := [name for name in left_out(trainer.model) if fnmatchcase(name, f"{matrices}*")]:
        _LOGGER.warning("not measured, of unknown kind or empty: %s", shown(names))
    log = trainer.log

    class Watch(TrainerCallback):  # type: ignore[misc]
        watched, has_warned = matrices, False

        def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.global_step == 0:
                trainer.log(self.measure())

        def log(self, logs: dict[str, float], *more: Any, **named: Any) -> None:
            if any("loss" in name.split("/") for name in logs):
                logs.update(self.measure())
            log(logs, *more, **named)

        def measure(self) -> dict[str, float]:
            rows = trainer.state.log_history
            first = {name: row[name] for row in rows if row["step"] == 0 for name in row}
            try:
                return weight_measures(trainer.model, matrices, first)
            except ConfigError as error:
                if not self.has_warned:
                    _LOGGER.warning("no measures at step %s: %s", trainer.state.global_step, error)
                self.has_warned = True
                return {}

    trainer.add_callback(callback := Watch())
    trainer.log = callback.log
