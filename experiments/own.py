"""Questions of our own: the price of reasoning, distance travelled, late complexity control."""

from functools import partial

import section
from papers.figures import against, by_phase, strips
from papers.rows import Rows, never_came, steps_to


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


def draw(data: section.Data) -> section.Panels:
    """One panel a question."""
    price = against(
        data.rows("arbitrary"),
        "gamma",
        partial(steps_to, column="steps_to_loss"),
        "n_layers",
        labels=("gamma", "steps to a training loss of 0.05"),
        name=lambda _: "mean",
        bound=never_came("steps_to_loss"),
    )
    travelled = by_phase(data.random_settings(), {"distance": "distance from initialisation"})
    changed = strips(branches(data.rows("branches")), "OOD accuracy", reference=0.5)
    return [
        [("arbitrary mappings", price), ("every run", travelled)],
        [("weight decay or learning rate changed midway", changed)],
    ]


if __name__ == "__main__":
    section.main(draw)
