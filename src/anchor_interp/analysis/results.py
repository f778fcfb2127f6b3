"""What an analysis of one checkpoint holds. The module of each part says what it means."""

from dataclasses import dataclass
from typing import Any

from anchor_interp._util.readable import Readable
from anchor_interp.analysis import conclusions as say
from anchor_interp.analysis.attention import AttentionExample, SequenceAttention
from anchor_interp.analysis.circuits import Circuit, CircuitScores
from anchor_interp.analysis.clusters import Clusters
from anchor_interp.analysis.development import Development
from anchor_interp.analysis.fingerprint_numbers import Fingerprint
from anchor_interp.analysis.flow import InformationFlow
from anchor_interp.analysis.logit_attribution import Attribution
from anchor_interp.analysis.mask_leakage import MaskLeakage
from anchor_interp.analysis.parts import AttributedEdges, Patched
from anchor_interp.analysis.rivals import CircuitComparison
from anchor_interp.analysis.routes import RouteScores
from anchor_interp.analysis.sensitivity import Sensitivity
from anchor_interp.analysis.similarity import Similarity
from anchor_interp.analysis.verdict import Verdict
from anchor_interp.behaviour.answer_map_numbers import AnswerMap
from anchor_interp.behaviour.phase import Decision
from anchor_interp.interventions.interchange import InterchangeResult
from anchor_interp.interventions.patching import PatchResult
from anchor_interp.models.complexity import Complexity
from anchor_interp.models.embeddings import EmbeddingStructure
from anchor_interp.models.matrix_complexity import CosineMatrix
from anchor_interp.runs.config import RunConfig


@dataclass(frozen=True, eq=False)
class MechanismAnalysis:
    """What a model of an anchor task does inside; :attr:`Analysis.left_out` explains each None."""

    fingerprint: Fingerprint | None
    flow: InformationFlow | None
    right_answer: int | None
    """To the sequence of the flow; the rule's if its pair is unseen."""
    routes: RouteScores | None
    edges: AttributedEdges | None
    circuit: Circuit | None
    scores: CircuitScores | None
    comparison: CircuitComparison | None
    leaks: tuple[MaskLeakage, ...]
    patches: tuple[Patched, ...]
    interchanges: tuple[InterchangeResult, ...]
    similarities: tuple[Similarity, ...]
    clusters: tuple[Clusters, ...]
    keys: tuple[int, ...]
    embedding: EmbeddingStructure | None
    attention: tuple[AttentionExample, ...]
    sensitivity: Sensitivity | None

    @property
    def small_circuit(self) -> Circuit | None:
        """The circuit, if less than half of the edges keep the answers."""
        return self.circuit if self.scores is not None and say.is_small(self.scores) else None


@dataclass(frozen=True, eq=False)
class ExamplesAnalysis:
    """What a model does in n examples of any task, those with a twin compared with it."""

    n: int
    accuracy: float
    train_accuracy: float | None
    """Of the training examples, if they are given."""
    wrong_given: bool
    """Whether the wrong answers are the examples' own, and not their twins'."""
    patches: PatchResult | None
    agreement: float | None
    """Rank correlation of attribution patching (integrated gradients) with patching, by site."""
    attribution: Attribution | None
    """Of the right answer and the wrong one."""
    edges: AttributedEdges | None
    flow: InformationFlow | None
    """In the first example, if few edges can reach the answer."""
    n_aligned: int
    """Examples of the circuit, whose places are the same: it is judged on every second one."""
    circuit: Circuit | None
    scores: CircuitScores | None
    comparison: CircuitComparison | None

    @property
    def components(self) -> list[dict[str, Any]]:
        """What every component adds to both answers, the largest difference first."""
        rows = [] if self.attribution is None else self.attribution._rows()
        return sorted(rows, key=lambda row: -abs(row["answer_0"] - row["answer_1"]))


@dataclass(frozen=True, eq=False, repr=False)
class Analysis(Readable):
    """Everything measured of one checkpoint.

    A model that is not a run has no identity, configuration and step, and one without an anchor
    task neither decision nor mechanism; ``left_out`` says why. ``neurons`` are those of W_Q in
    layer 0. ``attention`` is of a run on a task without anchors, or of the examples given.
    """

    name: str
    verdict: Verdict | None
    """The phase by mechanism, with its evidence."""
    mechanism: MechanismAnalysis | None
    complexity: Complexity
    neurons: CosineMatrix | None
    left_out: tuple[str, ...]
    run_id: str | None = None
    config: RunConfig | None = None
    step: int | None = None
    decision: Decision | None = None
    """The phase by behaviour."""
    near: tuple[str, ...] = ()
    """The measurements that lie near a line of its rule."""
    answers: AnswerMap | None = None
    """Of the unseen pairs; None without any."""
    development: Development | None = None
    attention: tuple[SequenceAttention, ...] = ()
    examples: ExamplesAnalysis | None = None
    schema: int = 5

    @property
    def conclusions(self) -> dict[str, str]:
        """What every section of the page that has numbers says, by the section's name."""
        sentences: dict[str, str | None] = {
            "phase": say.conclude_phase(self.decision, self.verdict),
            "complexity": say.conclude_complexity(self.complexity),
        }
        if (e := self.examples) is not None:
            right = f"The model answers {e.accuracy:.2f} of the {e.n} rightly"
            if e.train_accuracy is not None:
                right += f", {e.train_accuracy:.2f} of those in training"
            n_patched = 0 if e.patches is None else len(e.patches.clean)
            sentences["examples"] = f"{right}; patched: {n_patched} of {e.n} examples."
        m = self.mechanism
        if m is not None:
            finished = m.circuit is None or m.circuit.finished
            sentences |= {
                "flow": say.conclude_flow(m.routes),
                "circuit": say.conclude_circuit(m.scores, finished=finished),
                "masks": say.conclude_masks(m.leaks),
                "patching": say.conclude_patching(m.patches, m.interchanges),
                "representations": say.conclude_representations(
                    m.similarities, m.fingerprint, m.interchanges
                ),
                "attention": say.conclude_attention(m.attention),
            }
        elif self.attention:
            sentences["attention"] = say.conclude_predictions(self.attention)
        return {name: text for name, text in sentences.items() if text is not None}

    def _summary(self) -> str:
        at = "" if self.step is None else f" at step {self.step}"
        parts = f"{self.name}{at}; left out: {len(self.left_out)}"
        first = self.conclusions.get("phase", self.conclusions.get("examples"))
        return parts if first is None else f"{parts}\n{first}"

    def _rows(self) -> list[dict[str, str]]:
        said = [*self.conclusions.items(), *(("left out", why) for why in self.left_out)]
        return [{"section": name, "conclusion": text} for name, text in said]
