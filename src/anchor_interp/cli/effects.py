"""The command that asks a question of a sweep: effect."""

from pathlib import Path

from anchor_interp._util.schema import to_dict
from anchor_interp.cli.options import PLAIN, Outputs


def effect(
    runs: Path,
    /,
    *where: str,
    of: str,
    on: str,
    within: str | None = None,
    least: float = 0.3,
    between: str | None = None,
    cluster: str | None = None,
    output: Outputs = PLAIN,
) -> None:
    """Say whether a number of a sweep's runs goes with a setting: effect, interval, p and power.

    Args:
        runs: The sweep folder, or its table (.parquet or .csv).
        where: Runs that count, such as lr=0.001 or n_layers=2,3; all if none is given.
        of: Column of the number, such as ood_accuracy or a measure of your own.
        on: Column of the setting, such as gamma; its correlation with the number is the effect.
        within: Columns, with commas between them, in which compared runs agree.
        least: The smallest effect that counts, positive if the number should rise.
        between: Two values of the setting, such as symmetric,inferential: the effect is the mean
            at the second minus that at the first.
        cluster: Columns, such as seed, whose runs of one setting count as one.
    """
    from anchor_interp.sweeps import effects
    from anchor_interp.sweeps.typed import named_values

    answer = effects.effect(
        runs, of=of, on=on, within=_names(within), least=least, cluster=_names(cluster),
        between=None if between is None else named_values([f"between={between}"])["between"],
        where=named_values(where),
    )  # fmt: skip
    lines = [str(answer), *(f"{at}: {part.sentence}" for at, part in answer.strata.items())]
    output.show(to_dict(answer), *lines)


def _names(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(name.strip() for name in text.split(","))
