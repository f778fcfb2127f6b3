"""How results show themselves: a few lines of text, a small table in a notebook, a DataFrame."""

import html
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

_MOST_ROWS = 10
"""Rows that a notebook shows."""


class Readable(ABC):
    """Base of results that say what they hold; a dataclass sets ``repr=False`` to use it.

    A subclass gives a summary of one to three short lines, and the rows of its table.
    """

    @abstractmethod
    def _summary(self) -> str: ...

    @abstractmethod
    def _rows(self) -> Iterable[Mapping[str, Any]]: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self._summary()}"

    def _repr_html_(self) -> str:
        import pandas

        rows = iter(self._rows())
        shown = pandas.DataFrame(list(itertools.islice(rows, _MOST_ROWS)))
        table = shown.to_html(index=False, border=0, na_rep="-", float_format="{:.3g}".format)
        left = sum(1 for _ in rows)
        more = f"<p>{left} more rows: to_frame()</p>" if left else ""
        return f"<pre>{html.escape(repr(self))}</pre>{table}{more}"

    def to_frame(self) -> "pandas.DataFrame":
        """The table as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(list(self._rows()))


def number(value: float | None) -> str:
    """Two decimals, or a dash for a number that there is not."""
    return "-" if value is None else f"{value:.2f}"


def beside(share: float, line: float) -> str:
    """A share with two decimals, or as many as show on which side of a line it is."""
    digits = next((n for n in (2, 3, 4) if (round(share, n) < line) == (share < line)), 6)
    return f"{share:.{digits}f}"
