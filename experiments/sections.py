"""Draws the papers' sections: each in the paper's task and layout, with its panel letters.

``python experiments/sections.py control_8 --judge --tables experiments/tables/tiny`` draws one from
the tables, and several names several; ``all`` is every one. ``--run FOLDER`` puts a run of your own
in the place of the packaged models.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

import across_tasks
import control_7
import control_7_concepts
import control_7d
import neurips_4
import papers.command
import section
import verdict
from anchor_interp._util.errors import ConfigError
from anchor_interp.analysis.clusters import key_mask_clusters, pair_clusters
from anchor_interp.analysis.flow import information_flow
from anchor_interp.analysis.similarity import answer_similarity, block_similarity, value_similarity
from anchor_interp.models.complexity import first_query_matrix
from anchor_interp.models.embeddings import embedding_structure, key_embeddings
from anchor_interp.models.matrices import cosine_matrix
from anchor_interp.pages import mechanism_figures as plotting
from anchor_interp.pages.answer_figures import answer_maps
from anchor_interp.pages.diagram_curves import along_axis
from anchor_interp.pages.diagram_maps import accuracy_map, phase_map, rank_map
from anchor_interp.runs.answers import answer_map
from anchor_interp.runs.run import Run
from anchor_interp.sweeps.diagrams import Diagram, phase_diagrams
from anchor_interp.tasks.sequences import PROBE
from papers.claims import CLAIMS, REALISTIC
from papers.effects import grouped
from papers.figures import (
    by_phase,
    embedded_numbers,
    forest,
    grid,
    mask_drawing,
    over_depth,
    pairs_learned,
    spectra,
    strips,
    triangles,
)
from papers.judging import Judgement
from papers.rows import Rows, matching, never_came, on_control, steps_to_loss
from papers.studies import STUDIES
from section import Data, Panels, titled

FIGURES: Mapping[str, str] = {
    "neurips_4": "NeurIPS, figure 2",
    "neurips_5_1": "NeurIPS, figure 3",
    "neurips_5_2": "NeurIPS, figure 4",
    "neurips_5_3": "NeurIPS, figure 5",
    "neurips_6": "NeurIPS, figure 6",
    "neurips_b": "NeurIPS, figure 7",
    "neurips_rates": "NeurIPS, later version",
    "control_4": "complexity control, figure 3",
    "control_5a": "complexity control, figure 4C",
    "control_5b": "complexity control, figure 4D",
    "control_6a": "complexity control, figure 5A",
    "control_6b": "complexity control, figure 5B",
    "control_6c": "complexity control, figure 5C",
    "control_7_concepts": "complexity control, figure 6",
    "control_7": "complexity control, figure 7A-C, E",
    "control_7d": "complexity control, figure 7D",
    "control_8": "complexity control, figure 8",
    "control_c": "complexity control, figure 10",
    "across_tasks": "one measure on all tasks",
    "own": "limits, and questions of our own",
}
"""The papers' figures by section, as forest plots group their claims."""
README = Path(__file__).parents[1] / "README.md"
NEURIPS = (0.69, 0.55)  # inferential from smaller weights, symmetric from larger ones
LOW, UP = ((3, 3), (2, 2)), ((1, 2), (1, 3))  # figure 4a and 4b, below and above the diagonal


def _every_run(data: Data, **numbers: str) -> Panels:
    """Numbers of all runs of random settings, by task and layout; none beside the user's runs."""
    if data.own:
        return []
    return [[("random settings, every run", by_phase(data.random_settings(), numbers))]]


def _at_the_papers_width(data: Data, **numbers: str) -> Panels:
    """Numbers of all runs of width 400, by phase; none beside the user's runs."""
    if data.own or not (rows := data.tables.get("solutions")):
        return []
    return [[("width 400, every run", by_phase(rows, numbers, strata=False))]]


def _decay(data: Data, **where: tuple[float, ...]) -> Diagram:
    axes = {"x": "gamma"} if where else {"x": "gamma", "y": "weight_decay"}
    return phase_diagrams(data.rows("decay"), **axes, where=where).diagrams[0]


def _solutions(data: Data) -> list[Run]:
    """An inferential and a symmetric model: two layers, post-LayerNorm, the NeurIPS task."""
    return [*data.own] or [*data.gammas(NEURIPS[0]), *data.models("neurips-symmetric")]


def neurips_5_1(data: Data) -> Panels:
    """NeurIPS paper, section 5.1: information flow in two solutions (figure 3)."""
    rows = []
    for run, letters in zip(_solutions(data)[::-1], ("(a) (b)", "(c)", "", ""), strict=False):
        first, _, second = letters.partition(" ")
        flow = information_flow(run.model, PROBE)
        rows.append([(f"{first} {titled(run)}", plotting.information_flow(flow))])
        if second or data.own:
            task = run.config.anchor_task
            points = pair_clusters(run.model, task, n=10_000, centre=False, tsne=True)
            name = f"{second} X_ao L0, X^ao(1) in the paper"
            rows[-1].append((name, plotting.cluster_map(points)))
    return [
        *rows,
        *_every_run(
            data, route_symmetric="symmetric route", route_inferential="inferential route",
            order_first="order in X_ao L0",
        ),
    ]  # fmt: skip


def neurips_5_2(data: Data) -> Panels:
    """NeurIPS paper, section 5.2: are vectors of equal answers and values parallel (figure 4)?"""
    rows = []
    for centred, letters in ((False, ("a", "b", "c")), (True, "")):
        panels = []
        runs = _solutions(data)
        for place, run in enumerate(runs):
            task, layer = run.config.anchor_task, run.model.cfg.n_layers - 1
            found = answer_similarity(run.model, task, layer=layer)
            panels.append((titled(run), triangles(found, LOW, UP, centred=centred)))
            if place == len(runs) - 1:
                values = value_similarity(runs[0].model, task)
                single = (((3,), (2,)), ((1,), (2,)))
                panels.append(
                    ("V L1, " + titled(runs[0]), triangles(values, *single, centred=centred))
                )
        rows.append([
            (f"({letters[i]}) {title}" if i < len(letters) else title, figure)
            for i, (title, figure) in enumerate(panels)
        ])  # fmt: skip
    answer, value = "X_ao, last layer:\ncontrast", "OV from L1 on:\ncontrast"
    return [*rows, *_every_run(data, answer=answer, value=value)]


def _condensed(run: Run) -> Figure:
    return plotting.condensation_map(cosine_matrix(first_query_matrix(run.model)))


def _embedded(run: Run) -> Figure:
    found = embedding_structure(key_embeddings(run.model, run.config.anchor_task))
    return embedded_numbers(found, run.config.anchor_task.keys.tolist())


def neurips_5_3(data: Data) -> Panels:
    """NeurIPS paper, section 5.3: condensation of W_Q(1) and order in the embedding (figure 5)."""
    runs = data.gammas(*NEURIPS)
    return [
        [(f"({x}) {titled(run)}", _condensed(run)) for run, x in zip(runs, "abef", strict=False)],
        [(f"({x}) {titled(run)}", _embedded(run)) for run, x in zip(runs, "cdgh", strict=False)],
        *_every_run(
            data, condensation="condensation", embedding_smooth="smooth share",
            embedding_steps="steps 3 and 4 (z)",
        ),
        *_at_the_papers_width(data, condensation="condensation", embedding_smooth="smooth share"),
    ]  # fmt: skip


def _speed(data: Data, *sizes: str) -> list[tuple[str, Figure]]:
    """Steps to a training loss over depth, a panel for each size of the initial weights."""
    rows = data.rows("complexity-post")
    ends = dict(zip(("large", "small"), sorted({row["gamma"] for row in rows}), strict=True))
    return [
        (f"{size} initialisation, gamma {ends[size.split()[-1]]:g}",
         over_depth([*filter(matching({"gamma": ends[size.split()[-1]]}), rows)]))
        for size in sizes
    ]  # fmt: skip


def neurips_6(data: Data) -> Panels:
    """NeurIPS paper, section 6: steps to fit data of growing inferential complexity (figure 6)."""
    return [_speed(data, "(a) small", "(b) large")]


def neurips_b(data: Data) -> Panels:
    """NeurIPS paper, appendix B: eigenvalues of the embedding's covariance (figure 7)."""
    panels = []
    for run in data.gammas(*NEURIPS):
        steps = {step: run.at(step).model for step in run.steps}
        first = {0: run.initial} if run.initial is not None else {}
        embedded = {
            step: embedding_structure(key_embeddings(model, run.config.anchor_task))
            for step, model in (first | steps).items()
        }
        lines = {step: structure.eigenvalues.tolist() for step, structure in embedded.items()}
        panels.append((titled(run), spectra(lines)))
    return [
        panels,
        *_every_run(
            data, embedding_dimension="dimension / Gaussian's", embedding_smooth="smooth share"
        ),
        *_at_the_papers_width(data, embedding_dimension="dimension / Gaussian's"),
    ]


def neurips_rates(data: Data) -> Panels:
    """NeurIPS paper, later version: learning rate x weight decay."""
    labels = ("learning rate", "weight decay", "OOD accuracy")
    figure = grid(data.rows("rates"), "lr", "weight_decay", "ood_accuracy", labels=labels)
    return [[("OOD accuracy, with the runs' phases", figure)]]


def control_4(data: Data) -> Panels:
    """Complexity-control paper, section IV: phases over gamma and weight decay (figure 3).

    Below are the functions that a model of each phase applies to unseen pairs.
    """
    plane = _decay(data)
    judging = on_control(data.random_settings())
    numbers = {"gamma": "gamma", "commutativity": "commutativity"}
    runs = data.models("memorizing", "composite", "symmetric", "inferential")
    return [
        [("(A) weight decay 0.01", along_axis(_decay(data, weight_decay=(0.01,))))],
        [("(B) OOD accuracy", accuracy_map(plane, "ood_accuracy"))],
        [("phase of every run of this grid", phase_map(plane))],
        [("random settings, which judge the claims on phases", by_phase(judging, numbers))],
        *([(titled(run), answer_maps({"": answer_map(run)}, width=2.4))] for run in runs),
    ]


def control_5a(data: Data) -> Panels:
    """Complexity-control paper, section V-A: outputs while the key is masked (figure 4A, 4C)."""
    found = [
        (f"(C) {titled(run)}",
         plotting.cluster_map(key_mask_clusters(run.model, run.config.anchor_task, tsne=True)))
        for run in data.models("memorizing", "composite", "symmetric")
    ]  # fmt: skip
    numbers = {"key_mask_pairs": "silhouette\nof pairs", "key_mask_order": "silhouette\nof orders"}
    return [
        [("(A) the key's information is masked", mask_drawing(1))],
        found,
        *_every_run(data, **numbers),
    ]


def control_5b(data: Data) -> Panels:
    """Complexity-control paper, section V-B: outputs while the second anchor is masked (figure 4).

    Cosines are centred, as the claim is judged; the logits of a composite model are parallel
    otherwise. Below is X_ao L1, which the last MLP has still to read.
    """
    runs = data.models("composite", "symmetric", "inferential")
    return [
        [("(B) the second anchor's information is masked", mask_drawing(3))],
        [
            (f"(D) {titled(run)}",
             plotting.similarity_map(block_similarity(run.model, run.config.anchor_task)))
            for run in runs
        ],
        [
            (f"X_ao L1, {run.phase}", plotting.similarity_map(
                block_similarity(run.model, run.config.anchor_task, state="X_ao")))
            for run in runs
        ],
        *_every_run(data, blocks="blocks: contrast"),
    ]  # fmt: skip


def control_6a(data: Data) -> Panels:
    """Complexity-control paper, section VI-A: condensation of W_Q(1), by phase (figure 5A)."""
    runs = data.models("memorizing", "symmetric", "inferential")
    numbers = {"condensation": "mean |cosine|", "rank_share": "stable rank / initial"}
    return [
        [(f"(A) {titled(run)}", _condensed(run)) for run in runs],
        *_every_run(data, **numbers),
    ]


def control_6b(data: Data) -> Panels:
    """Complexity-control paper, section VI-B: order in the embedding (figure 5B), moved anchors.

    The paper sees steps of 3 and 4, of which the anchors' differences are sums. If that is why,
    anchors whose differences are sums of 2 and 5 must give steps of 2 and 5.
    """
    runs = data.models("memorizing", "symmetric", "inferential")
    drawn = [[(f"(B) {titled(run)}", _embedded(run)) for run in runs]]
    if data.own:
        return drawn
    moved = []
    for title, own in (("differences of 3 and 4", True), ("differences of 2 and 5", False)):
        mine = [r for r in data.rows("steps") if (r["task"] == "complexity-control") == own]
        values = {
            f"step {n}": [z for row in mine if (z := row.get(f"step_z_{n}")) is not None]
            for n in (2, 3, 4, 5)
        }
        moved.append((title, strips(values, "closeness beyond smooth (z)", reference=0)))
    numbers = {"embedding_steps": "steps 3 and 4 (z)", "embedding_smooth": "smooth share"}
    return [*drawn, moved, *_every_run(data, **numbers)]


def control_6c(data: Data) -> Panels:
    """Complexity-control paper, section VI-C: stable rank over gamma and decay (figure 5C)."""
    numbers = {"stable_rank": "stable rank", "rank_share": "over the initial one"}
    every = by_phase(data.rows("decay"), numbers, strata=False)
    return [
        [("(C) stable rank of W_Q L0", rank_map(_decay(data), "stable_rank"))],
        [("every run of this grid", every)],
        *_every_run(data, **numbers),
    ]


def control_8(data: Data) -> Panels:
    """Complexity-control paper, section VIII: fitting speed (figure 8) and noise detection."""
    scores = {"auroc_late": "late", "auroc_loss": "mean loss", "auroc_final": "final loss"}
    against = {"": "all", "_neighbours": "neighbours", "_strangers": "others"}
    tasks = [*data.rows("noise-60"), *data.rows("noise-240")]
    areas = {
        f"{title}\n{whom}": [v for row in tasks if (v := row.get(name + end)) is not None]
        for end, whom in against.items()
        for name, title in scores.items()
    }
    broken = [row for row in data.rows("pairs-post") if row["complexity"]]
    pairs = pairs_learned(broken)
    return [
        _speed(data, "(A) large", "(A) small"),
        [("(B) (3, 4) and (4, 3) broken; pairs of 3 and 4 in colour", pairs)],
        [("broken groups found, task by task", strips(areas, "AUROC", reference=0.5))],
    ]


def control_c(data: Data) -> Panels:
    """Complexity-control paper, appendix C: condensation over gamma and decay (figure 10).

    The paper shows one matrix of cosines a cell and seed; this shows their mean absolute value over
    all seeds, which is what the claim is about.
    """
    labels = ("gamma", "weight decay", "condensation of W_Q L0, W_Q(1) in the paper")
    figure = grid(data.rows("decay"), "gamma", "weight_decay", "condensation", labels=labels)
    return [[("condensation, with the runs' phases", figure)]]


def own(data: Data) -> Panels:
    """Questions of our own: the price of reasoning, distance travelled, late complexity control."""
    found = {
        f"gamma {gamma:g}": mine
        for (gamma,), mine in grouped(data.rows("arbitrary"), ["gamma"]).items()
    }
    steps = {name: [steps_to_loss(row) or 0.0 for row in mine] for name, mine in found.items()}
    never = {name: [*map(never_came, mine)] for name, mine in found.items()}
    price = strips(steps, "steps to a training loss of 0.05", hollow=never)
    changed = strips(branches(data.rows("branches")), "OOD accuracy", reference=0.5)
    return [
        [("arbitrary mappings", price)],
        [("weight decay or learning rate changed midway", changed)],
        *_every_run(data, distance="distance from\ninitialisation"),
    ]


def branches(rows: Rows) -> dict[str, list[float]]:
    """OOD accuracy of the runs by what was changed, and when."""
    found: dict[str, list[float]] = {}
    for row in rows:
        title = f"wd {row['weight_decay']:g}"
        if row.get("branch_step") is not None:
            if row.get("branch_weight_decay") is not None:
                title += f"\n{row['branch_weight_decay']:g} from\n{row['branch_step']}"
            else:
                title += f"\nlr / {row['lr'] / row['branch_lr']:g}\nfrom {row['branch_step']}"
        if row["ood_accuracy"] is not None:
            found.setdefault(title, []).append(row["ood_accuracy"])
    return found


def _forest(data: Data, shown: Callable[[str], bool], title: str) -> Panels:
    """The claims that are shown, by the papers' figures."""
    groups: dict[str, list[Judgement]] = {heading: [] for heading in FIGURES.values()}
    for claim in CLAIMS:
        if shown(claim.name):
            heading = FIGURES.get(claim.section or claim.name, FIGURES["own"])
            groups[heading].append(data.judged[claim.name])
    return [[(title, forest(groups))]]


def forest_anchors(data: Data) -> Panels:
    """Claims on anchor tasks: every effect, in units of the smallest that counts."""
    return _forest(data, lambda name: name not in REALISTIC, "claims on anchor tasks")


def forest_realistic(data: Data) -> Panels:
    """Claims on realistic tasks, and across all tasks."""
    return _forest(data, lambda name: name in REALISTIC, "claims on realistic tasks")


def forest_readme(data: Data) -> Panels:
    """The claims that the README names."""
    named = set(re.findall(r"docs/claims\.md#([\w-]+)", README.read_text(encoding="utf-8")))
    return _forest(data, lambda name: name in named, "effects of the claims named here")


SECTIONS: Mapping[str, Callable[[Data], Panels]] = {
    draw.__module__ if draw.__name__ == "draw" else draw.__name__: draw
    for draw in (
        neurips_4.draw, neurips_5_1, neurips_5_2, neurips_5_3, neurips_6, neurips_b, neurips_rates,
        control_4, control_5a, control_5b, control_6a, control_6b, control_6c, control_7.draw,
        control_7_concepts.draw, control_7d.draw, control_8, control_c, across_tasks.draw, own,
        verdict.draw,
        forest_anchors, forest_realistic, forest_readme,
    )
}  # fmt: skip
_STUDIES = {
    "neurips_4": ("depth",), "control_6c": ("decay",), "control_7_concepts": ("concepts",),
    "neurips_6": ("complexity-post",), "verdict": ("settings", "settings-judging"),
    "control_8": ("complexity-post", "pairs-post", "noise-60", "noise-240"),
    **dict.fromkeys(("forest_anchors", "forest_realistic", "forest_readme"), tuple(STUDIES)),
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Draw the sections that the command line names; all runs are trained first."""
    parser = papers.command.parser("sections.py", str(__doc__))
    add = parser.add_argument
    add("sections", nargs="+", metavar="SECTION", help=f"all, {', '.join(SECTIONS)}")
    add("--figures", type=Path, help="folder of the figure (OUT/figures)")
    own = "a run of your own to look into, in place of the packaged models; as often as you like"
    add("--run", action="append", default=[], dest="runs", metavar="FOLDER", help=own)

    def work() -> int:
        asked = parser.parse_args(arguments)
        names = [*SECTIONS] if asked.sections == ["all"] else asked.sections
        if unknown := set(names) - set(SECTIONS):
            raise ConfigError(f"no section is called {unknown.pop()}; known: {', '.join(SECTIONS)}")
        studies = [study for name in names for study in _STUDIES.get(name, ())]
        return section.make({name: SECTIONS[name] for name in names}, studies, asked)

    return papers.command.exit_code("sections", work)


if __name__ == "__main__":
    raise SystemExit(main())
