"""A session of training a run: start or resume, log, checkpoint, judge."""

import functools
import logging
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Integer

from anchor_interp._util.environment import BIT_FOR_BIT, describe_environment, now
from anchor_interp._util.errors import StoreError
from anchor_interp._util.schema import to_dict
from anchor_interp._util.signals import StopRequest
from anchor_interp.behaviour.evaluation import predict
from anchor_interp.behaviour.phase import decide
from anchor_interp.behaviour.scoring import right_answers, token_scores
from anchor_interp.models.networks import Network, as_transformer
from anchor_interp.runs.config import RunConfig, run_id
from anchor_interp.runs.loop import StepEvent, TrainState, check_finite_weights
from anchor_interp.runs.run import evaluate_run, model_at
from anchor_interp.runs.schedule import last_step, total_decay
from anchor_interp.runs.store import Row, RunWriter
from anchor_interp.tasks.anchor import AnchorTask
from anchor_interp.tasks.contract import draw_aspects, draw_baselines, draw_examples, untrained
from anchor_interp.tasks.examples import Dataset, SplitRole

_LOGGER = logging.getLogger(__name__)


class Session:
    """Starts or resumes a run whose folder is held for writing, and records its training."""

    def __init__(self, writer: RunWriter, probes: "Probes", device: torch.device) -> None:
        self.writer, self.probes = writer, probes
        self.config, self.training = probes.config, probes.training
        self.latest: Row = {}
        """The newest value of every metric."""
        self.fitted_step: int | None = None
        """The second of two evaluations in a row that found ``until_accuracy``."""
        self._was_fitted = False  # at the newest evaluation
        self.state = self._start_or_resume(device)

    @property
    def is_trained(self) -> bool:
        """Whether no step is left."""
        return self.state.step >= self.last_step

    @property
    def last_step(self) -> int:
        """The step at which the training ends, by what is known at this step."""
        return last_step(self.config.train.steps, self.fitted_step)

    @property
    def is_due(self) -> bool:
        """Whether this step is logged or checkpointed."""
        train, step = self.config.train, self.state.step
        return train.is_logged(step) or not step % train.checkpoint_every or self.is_trained

    @property
    def next_due(self) -> int:
        """The next step that is logged or checkpointed."""
        train, step = self.config.train, self.state.step
        periods = (train.log_every, train.eval_every, train.checkpoint_every)
        return min(self.last_step, *(every * (step // every + 1) for every in periods))

    @property
    def wants_accuracies(self) -> bool:
        """Whether accuracies are measured at this step."""
        return self.is_trained or self.state.step % self.config.train.eval_every == 0

    def log(self, event: StepEvent, answers: Integer[np.ndarray, " n"] | None = None) -> Row | None:
        """Write and return the line of metrics of the newest step, if one is due.

        ``answers`` are predictions for ``probes.tokens``, if they are known.
        """
        if not (self.config.train.is_logged(event.step) or self.is_trained):
            return None
        loss, norm = event.loss.item(), event.grad_norm.item()
        row = {"step": event.step, "loss": loss, "lr": event.lr, "grad_norm": norm}
        if self.wants_accuracies:
            check_finite_weights(self.state)
            row |= self.probes.measure(self.state.model, answers)
            row |= tokens_seen(self.config, self.training, self.state.step)
        self.writer.append_metrics(row)
        self.latest.update(row)
        self._note_fit(row)
        return row

    def keep(self, *, leaving: bool = False) -> None:
        """Commit a checkpoint, if one is due or the session ends; DivergedError if not finite."""
        every = self.config.train.checkpoint_every
        if self.state.step % every == 0 or self.is_trained or leaving:
            check_finite_weights(self.state)
            weights, optimizer = self.state.weights(), self.state.optimizer_tensors()
            self.writer.save_checkpoint(self.state.step, weights, optimizer, every)
            self.writer.end_session(ended=now())  # so far: a kill may follow
            _LOGGER.debug("%s: checkpoint at step %d", self.writer.path, self.state.step)

    def judge(self, stopped: StopRequest) -> None:
        """Evaluate the final checkpoint and write the result; a signal interrupts it."""
        config, state, writer = self.config, self.state, self.writer
        message = "stopped while judging the final checkpoint, which is kept; give the same command"
        with stopped.at_once(f"{message} again to continue"):
            evaluation = evaluate_run(config, state.model, state.step, training=self.training)
        writer.thin_out(config.train.checkpoint_every)
        writer.end_session(ended=now())
        result = {"run_id": run_id(config), **to_dict(decide(evaluation))}
        result |= {"steps": state.step, "fitted_step": self.fitted_step}
        result |= {"total_decay": total_decay(config.train, state.step)}
        writer.write_json("result.json", result | {"evaluation": to_dict(evaluation)})

    def _start_or_resume(self, device: torch.device) -> TrainState:
        writer, config = self.writer, self.config
        newest = max(writer.steps(), default=0)
        step = writer.fall_back()
        self._note_session(step or 0, device)
        metrics = writer.cut_metrics(-1 if step is None else step)
        if step is None:
            state = TrainState.fresh(config, device)
            metrics = [{"step": 0, **self.probes.measure(state.model)}]
            metrics[0] |= tokens_seen(config, self.training, 0)
            writer.append_metrics(metrics[0])
            writer.save_checkpoint(0, state.weights(), {}, config.train.checkpoint_every)
        else:
            if step != newest:
                lacks = "the checkpoint at step %d lacks its optimizer state; going back to step %d"
                _LOGGER.warning(lacks, newest, step)
            state = TrainState(model_at(writer, config, step, device), config.train, step)
            if step:
                state.load_optimizer(writer.optimizer(step))
            writer.thin_out(config.train.checkpoint_every)
            _LOGGER.info("%s: continuing at step %d of %d", writer.path, step, config.train.steps)
        for row in metrics:
            self._note_fit(row)
        self._check_metrics(state.step, metrics)
        return state

    def _check_metrics(self, step: int, metrics: Sequence[Row]) -> None:
        """Warn if lines up to the checkpoint are gone; StoreError if its end depends on them."""
        expected = set(filter(self.config.train.is_logged, range(step + 1)))
        if not (lost := expected - {row["step"] for row in metrics}):
            return
        lacks = (
            f"{self.writer.path}/metrics.jsonl lacks {len(lost)} of {len(expected)} lines up to "
            f"step {step}"
        )
        if self.config.train.until_accuracy is not None:
            advice = "restore them, or remove the folder and train the run again"
            raise StoreError(f"{lacks}, and where the training ends depends on them; {advice}")
        _LOGGER.warning("%s; the training goes on without these points of its curves", lacks)

    def _note_session(self, step: int, device: torch.device) -> None:
        """Start an entry of the provenance; StoreError if the task's data have changed since."""
        session = {"from_step": step, **describe_environment(device)}
        sessions = self.writer.provenance()
        if data := self.config.task.data:
            session["data"] = data
            if (before := self.writer.data() or data) != data:
                raise StoreError(
                    f"{self.writer.path} was trained on other data (digest {before}, now {data}): "
                    "the files that its task reads have changed, or the version of Python; restore "
                    "them, or choose another folder"
                )
        self.writer.write_json("provenance.json", {"sessions": [*sessions, session]})
        warning = "resuming with other %s (%s; before: %s): the weights may differ in the last bits"
        for name in BIT_FOR_BIT if sessions else ():
            if (last := sessions[-1].get(name)) != session[name]:
                _LOGGER.warning(warning, name, session[name], last)

    def _note_fit(self, row: Row) -> None:
        """See from a line of metrics whether the model is fitted; given each once, in order."""
        goal = self.config.train.until_accuracy
        if goal is None or self.fitted_step is not None or "train_accuracy" not in row:
            return
        is_fitted = row["train_accuracy"] >= goal
        if is_fitted and self._was_fitted:
            self.fitted_step = row["step"]
        self._was_fitted = is_fitted


class Probes:
    """Small fixed sets of examples for the accuracies along training."""

    def __init__(self, config: RunConfig, training: Dataset) -> None:
        self.config, self.training = config, training
        self._task = task = config.task
        # another seed than the final evaluation's, so that curve and verdict are independent
        draw = functools.partial(draw_examples, task, seed=1)
        self._sets: list[tuple[SplitRole, Dataset]] = []
        for split in task.splits:
            most = task.most_probes
            n = most if split.size is None else min(most, split.size)
            part = training.rows(slice(most)) if split.role == "train" else draw(split.name, n)
            if not (split.role == "train" or isinstance(task, AnchorTask)):
                part = untrained(task, split.name, part, training)
            draw_aspects(task, part)  # a fault is found before the training, not after it
            draw_baselines(task, part)
            self._sets.append((split.role, part))

    @functools.cached_property
    def tokens(self) -> Integer[np.ndarray, "n pos"]:
        """All examples of a task that answers last, as a model reads them."""
        return np.concatenate([part.inputs for _, part in self._sets])

    def measure(self, model: Network, answers: Integer[np.ndarray, " n"] | None = None) -> Row:
        """Mean accuracies by role, and losses of a task by token; see :meth:`Session.log`."""
        right: list[float] = []
        losses: list[float] = []
        if self._task.answers_last:
            given = predict(as_transformer(model), self.tokens) if answers is None else answers
            ends = np.cumsum([len(part) for _, part in self._sets])[:-1]
            for own, (_, part) in zip(np.split(given, ends), self._sets, strict=True):
                right.append(float((own == part.last).mean()))
        elif self._task.by_token:
            for _, part in self._sets:
                shares, nats = token_scores(as_transformer(model), part)
                right.append(float(np.average(shares, weights=part.n_predicted)))
                losses.append(float(np.average(nats, weights=part.n_predicted)))
        else:
            right += [right_answers(model, self._task, part).mean() for _, part in self._sets]
        return self._by_role("accuracy", right) | self._by_role("loss", losses)

    def _by_role(self, name: str, values: Sequence[float]) -> Row:
        """The mean over the sets of every role; nothing without values."""
        roles: dict[str, list[float]] = {}
        for (role, _), value in zip(self._sets, values, strict=False):
            roles.setdefault(f"{role}_{name}", []).append(value)
        return {of_role: float(np.mean(own)) for of_role, own in roles.items()}


def tokens_seen(config: RunConfig, training: Dataset, step: int) -> Row:
    """The tokens that the updates up to a step predict on average; nothing of a task by answers."""
    if not config.task.by_token:
        return {}
    return {"tokens": round(step * config.train.batch_size * float(training.n_predicted.mean()))}


def is_done(writer: RunWriter, config: RunConfig) -> bool:
    """Whether a run has its result; StoreError if that or the last checkpoint is another run's."""
    result = writer.result()
    if result is None:
        return False
    last = result.get("steps", config.train.steps)
    if result.get("run_id") != run_id(config) or last not in writer.steps():
        raise StoreError(
            f"{writer.path} has a result that does not belong to its configuration and "
            "checkpoints; remove result.json to train the run to its end again"
        )
    writer.weights(last)  # refuses damaged ones
    _LOGGER.info("%s is already done", writer.path)
    return True
