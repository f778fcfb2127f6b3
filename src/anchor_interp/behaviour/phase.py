"""The measurements of a checkpoint, and the phase that follows from them: one total function.

Source: complexity-control paper, section IV (phases 1 to 3 and their thresholds); the symmetric
solution is the NeurIPS paper's, section 4. The rules are read from top to bottom:

===============  ==================================================================================
phase            rule
===============  ==================================================================================
``undertrained``  accuracy on the training sequences < 0.9 (without them, on fresh sequences of the
                  seen pairs with training keys)
``memorizing``    ID accuracy < 0.9 (with OOD >= 0.5 at the same time: ``other``)
``inferential``   OOD accuracy (the composed answer) >= 0.5; half of the way from chance to 1 on
                  a task where a guess is right with some chance (0.75 if that is 0.5). ``other``
                  where a shortcut of the task is as good, or every unseen pair has the answers
                  of a seen pair, such as its other order: it could be what the model uses
``symmetric``     a task with a symmetric target: that answer on >= 0.5 of the unseen sequences;
                  a task without: commutativity >= 0.7 and predictions that depend on the key
``composite``     commutativity < 0.7: each ordered pair is a mapping of its own
``other``         everything else
===============  ==================================================================================

A constant predictor commutes; it is not ``symmetric``, because its answers do not depend on the
key. A measurement that a task does not have is None and satisfies no rule. So a task without
anchors is ``other`` where OOD < 0.5: nothing tells a symmetric solution from a composite one.

:mod:`anchor_interp.behaviour.evaluation` does the measuring; this module does not import torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from anchor_interp._util.errors import ConfigError
from anchor_interp._util.readable import Readable, beside, number
from anchor_interp._util.schema import bounded, check_fields, checked
from anchor_interp.tasks.examples import SplitRole
from anchor_interp.tasks.functions import Pair, Role

Phase = Literal["undertrained", "memorizing", "composite", "symmetric", "inferential", "other"]

PHASE_MEANINGS: Mapping[Phase, str] = MappingProxyType(
    {
        "undertrained": "The model does not answer its own training sequences.",
        "memorizing": "It answers its training sequences, but not others of the same pairs.",
        "composite": "It answers seen pairs on new keys, with one mapping for each ordered pair.",
        "symmetric": "It gives both orders of a pair one answer, also where that is wrong.",
        "inferential": "It answers an unseen pair with the composition of its two functions.",
        "other": "No rule for another phase applies.",
    }
)
"""What each phase means on an anchor task, in the order of the rules."""
_WITHOUT_ANCHORS: Mapping[Phase, str] = MappingProxyType(
    {
        "undertrained": "The model does not answer its own training examples.",
        "memorizing": "It answers its training examples, but not others of their distribution.",
        "inferential": "It answers examples of what training leaves out.",
        "other": "No rule for another phase applies.",
    }
)
MEASUREMENTS: Mapping[str, str] = {
    "train_accuracy": "training accuracy", "id_accuracy": "ID accuracy",
    "ood_accuracy": "OOD accuracy", "symmetric_accuracy": "symmetric answers",
    "commutativity": "commutativity", "key_dependence": "key dependence",
}  # fmt: skip
"""What the rule reads of an evaluation, in words."""
NEAR = 0.05
"""A measurement is near a line of the rule if a change of this size changes the phase."""
_MOST_NATS = 700.0  # whose exponential is a number


@dataclass(frozen=True)
class Thresholds:
    """The least share, from 0 to 1, of each measurement at which the phase changes."""

    train: float = bounded(0.9, low=0, high=1)
    id: float = bounded(0.9, low=0, high=1)
    ood: float = bounded(0.5, low=0, high=1)
    symmetric: float = bounded(0.5, low=0, high=1)
    commutativity: float = bounded(0.7, low=0, high=1)
    key_dependence: float = bounded(0.5, low=0, high=1)

    def __post_init__(self) -> None:
        check_fields(self, "thresholds")


@dataclass(frozen=True)
class PairAccuracy:
    """Accuracies of one ordered pair; the target of an unseen pair is the composition."""

    pair: Pair
    role: Role
    train_keys: float
    test_keys: float


@dataclass(frozen=True)
class UnseenAnswers:
    """Answers on one unseen pair, with training and test keys together."""

    pair: Pair
    inferential: float
    symmetric: float | None
    """None if the two orders have the same answers, or the task has no symmetric target."""
    commutativity: float | None
    """None if the two anchors are equal."""
    key_dependence: float
    offsets: dict[str, float]
    """Share of each value of answer minus key, largest share first."""
    as_other_order: bool = False
    """Whether the other order was trained on the same answers, which a shortcut gives as well."""
    as_seen: tuple[Pair, ...] = ()
    """All seen pairs that were (``AnchorTask.alike``), if they leave no key that tells."""

    @property
    def cannot_tell(self) -> tuple[Pair, ...]:
        """The seen pairs from which nothing tells the rule."""
        return self.as_seen or (self.pair[::-1],) * self.as_other_order


@dataclass(frozen=True)
class CellAccuracy:
    """Mean accuracy by pairs and keys, with fresh noise; None where the task has no such pair."""

    seen_train_keys: float | None
    seen_test_keys: float | None
    unseen_train_keys: float | None
    unseen_test_keys: float | None


@dataclass(frozen=True)
class AspectScore:
    """How well a model does on the examples of a split that share a value of an aspect."""

    aspect: str
    """See :meth:`anchor_interp.tasks.task.Task.aspects`."""
    value: str | int
    """The value, or the smallest one of a range of whole numbers."""
    high: int | None
    """The largest value of the range; None for texts."""
    accuracy: float
    n: int
    """Examples."""


@dataclass(frozen=True)
class Baseline:
    """How well a shortcut does on the examples of a split."""

    name: str
    """See :meth:`anchor_interp.tasks.task.Task.baselines`."""
    accuracy: float


@dataclass(frozen=True)
class SplitScore:
    """How well a model does on one split of a task."""

    name: str
    role: SplitRole
    accuracy: float
    """Share of right answers, or of right tokens if the task's answers have no end."""
    loss: float
    """Mean cross-entropy of the tokens to predict, in nats; of pictures, the squared error of the
    noise."""
    n: int
    """Examples."""
    aspects: tuple[AspectScore, ...] = ()
    """The accuracy by every aspect of the task."""
    chance: float = 0.0
    """The accuracy of a guess."""
    baselines: tuple[Baseline, ...] = ()
    """The accuracies of the task's baselines on the same examples."""
    bits_per_byte: float | None = None
    """The loss by bytes of text instead of tokens, in bits; None if the task has no text."""
    by_token: bool = False
    """Whether every token is scored by itself, after all before it, as in language modelling."""

    @property
    def perplexity(self) -> float | None:
        """The exponential of the loss, where every token is scored by itself."""
        return math.exp(min(self.loss, _MOST_NATS)) if self.by_token else None

    @property
    def beside(self) -> str:
        """What stands beside the accuracy: chance and baselines; empty without any."""
        chance = [f"chance {self.chance:.3f}"] if self.chance else []
        return ", ".join(chance + [f'shortcut "{b.name}" {b.accuracy:.3f}' for b in self.baselines])


@dataclass(frozen=True, repr=False)
class Evaluation(Readable):
    """All measurements of one checkpoint; shares run from 0 to 1."""

    steps: int | None
    """Optimizer updates of the checkpoint, if known."""
    train_accuracy: float | None
    """Accuracy on the run's own training sequences; None without them."""
    id_accuracy: float | None
    """Seen pairs, test keys or what training lacks; of a task without anchors its ID splits."""
    ood_accuracy: float | None
    """Unseen pairs that tell, all keys, composed answer; of another task its OOD splits."""
    symmetric_accuracy: float | None
    """Unseen pairs answered with the other order's target; None if the task has none."""
    commutativity: float | None
    """Predictions on unseen pairs that stay when the anchors change places."""
    key_dependence: float | None
    """Predictions on unseen pairs that change with the key; None without any."""
    pair_accuracy: tuple[PairAccuracy, ...]
    """Every ordered pair by itself; empty for a task without anchors, as ``unseen`` is."""
    unseen: tuple[UnseenAnswers, ...]
    """Every unseen pair by itself."""
    cells: CellAccuracy
    stable_rank: float | None
    """Of W_Q in layer 0, the papers' W_Q(1); None for a zero matrix. Of a network without known
    queries (a U-Net, or q, k and v in one matrix) a mean over all matrices, as condensation is."""
    stable_rank_at_init: float | None
    condensation: float | None
    """Mean |cosine| between the neurons of that W_Q; None with a single neuron."""
    condensation_at_init: float | None
    n: int
    """Sequences per pair and kind of key; for a task without anchors, most examples of a split."""
    seed: int
    """Seed of the evaluation sequences."""
    commutativity_wrong: float | None = None
    """Commutativity of wrong answers: right ones commute if the rule does. None with fewer than
    20 wrong answers, or in an older file."""
    splits: tuple[SplitScore, ...] = ()
    """Every split of a task without anchors by itself."""
    schema: int = 1

    def __post_init__(self) -> None:
        for name in vars(self).keys() - _NO_SHARES:
            if type(share := getattr(self, name)) in (int, float) and not 0 <= share <= 1 + 1e-6:
                raise ConfigError(f"{name} is {share}; expected a number from 0 to 1, or None")

    def _summary(self) -> str:
        decision = decide(self)
        roles = (self.train_accuracy, self.id_accuracy, self.ood_accuracy)
        train, seen, unseen = map(number, roles)
        return (
            f"{decision.phase} ({decision.reason})\ntrain {train}, ID {seen}, OOD {unseen}, "
            f"commutativity {number(self.commutativity)}, stable rank {number(self.stable_rank)}"
        )

    def _rows(self) -> list[dict[str, Any]]:
        return [vars(entry) for entry in self.pair_accuracy or self.splits]


_NO_SHARES = {"steps", "n", "seed", "schema", "stable_rank", "stable_rank_at_init"}
_NOT_GIVEN = "its own training sequences are not given"
PAPER = Thresholds()
"""90 % ID, 50 % OOD and 70 % commutativity are the complexity-control paper's (section IV, figures
3B and 5C); 90 % training, 50 % symmetric and 50 % key dependence are this package's."""


@dataclass(frozen=True)
class Decision:
    """A phase, and the rule that applied with the measured numbers."""

    phase: Phase
    reason: str


def not_learned(own: float | None, fresh: float | None, least: float) -> str | None:
    """Why a model is undertrained; None if it is not, or if neither accuracy is known.

    ``own`` is the accuracy on its training sequences, ``fresh`` that on others of the seen pairs
    with training keys, which counts where ``own`` is None.
    """
    if own is not None:
        return f"training accuracy {beside(own, least)} < {least:g}" if own < least else None
    if fresh is None or fresh >= least:
        return None
    below = f"accuracy {beside(fresh, least)} < {least:g}"
    return f"{below} on fresh sequences with training keys; {_NOT_GIVEN}"


def classify(evaluation: Evaluation, thresholds: Thresholds = PAPER) -> Phase:
    """The phase of an evaluated checkpoint; ConfigError if the arguments are of another kind."""
    checked(evaluation, Evaluation, "evaluation")
    checked(thresholds, Thresholds, "thresholds")
    return decide(evaluation, thresholds).phase


def meanings(*, anchored: bool) -> Mapping[Phase, str]:
    """What each phase of a task with or without anchors means, in the order of the rules."""
    return PHASE_MEANINGS if anchored else _WITHOUT_ANCHORS


def ood_threshold(evaluation: Evaluation, thresholds: Thresholds = PAPER) -> float:
    """The least OOD accuracy of an inferential model: ``ood`` of the way from chance to 1."""
    chances = [score.chance for score in evaluation.splits if score.role == "ood"]
    chance = sum(chances) / len(chances) if chances else 0.0
    return chance + thresholds.ood * (1 - chance)


def _shortcuts(evaluation: Evaluation) -> dict[str, float]:
    """The mean accuracy of every baseline over the OOD splits."""
    splits = [split for split in evaluation.splits if split.role == "ood"]
    means: dict[str, float] = {}
    for baseline in (baseline for split in splits for baseline in split.baselines):
        means[baseline.name] = means.get(baseline.name, 0.0) + baseline.accuracy / len(splits)
    return means


def decide(evaluation: Evaluation, thresholds: Thresholds = PAPER) -> Decision:
    """The phase, with the rule that gave it."""
    e, t = evaluation, thresholds
    least = ood_threshold(e, t)
    missed = not_learned(e.train_accuracy, e.cells.seen_train_keys, t.train)
    if missed is not None:
        return Decision("undertrained", missed)
    train = e.cells.seen_train_keys if e.train_accuracy is None else e.train_accuracy
    if train is None:
        return Decision("other", _NOT_GIVEN)
    inferred = e.ood_accuracy is not None and e.ood_accuracy >= least
    if e.id_accuracy is not None and e.id_accuracy < t.id:
        below = f"ID {beside(e.id_accuracy, t.id)} < {t.id:g}"
        if inferred:
            return Decision("other", f"{below} but OOD {e.ood_accuracy:.2f} >= {least:g}")
        return Decision("memorizing", f"training accuracy {train:.2f}, {below}")
    known = f"training accuracy {train:.2f}" if e.id_accuracy is None else f"ID {e.id_accuracy:.2f}"
    if inferred:
        return _inferential_or_shortcut(e, least, known)
    if e.id_accuracy is None and e.cells.seen_test_keys is not None:
        return Decision("other", f"{known}; training holds every sequence of the seen pairs")
    if e.ood_accuracy is not None and e.splits:
        below = f"OOD {beside(e.ood_accuracy, least)} < {least:g}"
        lacks = "anchors" if e.id_accuracy is not None else "ID split, which shows memorizing"
        return Decision("other", f"{known}, {below}; the task has no {lacks}")
    if e.ood_accuracy is None or e.key_dependence is None:
        lacks = "OOD split" if e.splits else "unseen pair"
        return Decision("other", f"{known}; the task has no {lacks} to decide on")
    return _symmetric_or_composite(e, t)


def _inferential_or_shortcut(e: Evaluation, least: float, known: str) -> Decision:
    """Right on what was left out: inferential, unless a shortcut does as well."""
    known += f", OOD {e.ood_accuracy:.2f}"
    for name, share in _shortcuts(e).items():
        if share >= least:
            shortcut = f'the shortcut "{name}" has {share:.2f} >= {least:g}'
            return Decision("other", f"{known}, but {shortcut}; nothing tells it from inference")
    if e.unseen and all(one.cannot_tell for one in e.unseen):
        one, nothing = e.unseen[0], "nothing tells inference from the shortcut"
        alike = (
            f"every unseen pair has the answers of a seen one, {one.pair} of {one.cannot_tell[0]}"
        )
        return Decision("other", f"{known}, but {alike}; {nothing}")
    return Decision("inferential", f"{known} >= {least:g}")


def _symmetric_or_composite(e: Evaluation, t: Thresholds) -> Decision:
    """Wrong on unseen pairs of an anchor task: what their answers have in common."""
    if e.symmetric_accuracy is not None and e.symmetric_accuracy >= t.symmetric:
        share = f"symmetric answer on {e.symmetric_accuracy:.2f} >= {t.symmetric:g}"
        return Decision("symmetric", f"OOD {e.ood_accuracy:.2f}, {share}")
    if e.commutativity is None:
        return Decision("other", f"OOD {e.ood_accuracy:.2f}; no unseen pair has two orders")
    share = beside(e.commutativity, t.commutativity)
    commuting = f"OOD {e.ood_accuracy:.2f}, commutativity {share}"
    if e.commutativity < t.commutativity:
        return Decision("composite", f"{commuting} < {t.commutativity:g}")
    if e.symmetric_accuracy is not None:
        return Decision("other", f"{commuting}, symmetric answer on {e.symmetric_accuracy:.2f}")
    if e.key_dependence is not None and e.key_dependence < t.key_dependence:
        return Decision("other", f"{commuting}, but answers ignore the key")
    return Decision("symmetric", f"{commuting} >= {t.commutativity:g}")


def _phase_with(evaluation: Evaluation, name: str, value: float) -> Phase:
    """The phase if one measurement had another value."""
    changed: dict[str, Any] = {name: value}
    return decide(replace(evaluation, **changed)).phase


def deciding(evaluation: Evaluation) -> frozenset[str]:
    """The measurements that decide the phase: 0 or 1 in their place gives another one.

    For *other*, which no single rule gives, these are all.
    """
    phase = decide(evaluation).phase
    if phase == "other":
        return frozenset(MEASUREMENTS)
    at_ends = {n: [_phase_with(evaluation, n, end) for end in (0, 1)] for n in MEASUREMENTS}
    return frozenset(name for name, phases in at_ends.items() if phases != [phase, phase])


def near_lines(evaluation: Evaluation) -> tuple[str, ...]:
    """The measurements near a line of the rule, each with the phase beyond it; see :data:`NEAR`."""
    phase, lines = decide(evaluation).phase, []
    for name, words in MEASUREMENTS.items():
        value: float | None = getattr(evaluation, name)
        for moved in () if value is None else (max(0.0, value - NEAR), min(1.0, value + NEAR)):
            other = _phase_with(evaluation, name, moved)
            if other != phase:
                lines.append(f"{words} is {value:.2f}; at {moved:.2f} the phase would be {other}")
    return tuple(lines)
