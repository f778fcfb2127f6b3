"""The package stays short, and its checks stand at the door (CONTRIBUTING.md)."""

import textwrap
from pathlib import Path

import guards

SHARE, LINES, MEDIAN, LONGEST = 0.07, 29_784, 157, 400
"""Guard lines a code line, lines in all, lines of the median and of the longest module.

Lower a limit when the package falls below it. The aim is 0.07, 20,000, 180 and 400."""


def test_the_package_keeps_its_size() -> None:
    rooms = guards.count()
    package = guards.whole(rooms)
    text = f"a limit is passed; check arguments at the public function, once\n{guards.table(rooms)}"
    assert package.share <= SHARE, text
    assert package.lines <= LINES, text
    assert package.median <= MEDIAN, text
    assert package.longest <= LONGEST, text


def test_what_counts(tmp_path: Path) -> None:
    source = '''
        """A docstring
        of two lines."""

        def half(n: int) -> int:
            """Another."""  # with a comment
            # a comment alone
            if n % 2:
                text = (
                    "odd"
                )
                raise ValueError(text)
            check_range(n)
            keep_checkpoint(n)
            try:
                return divide(
                    n, 2
                )
            except ZeroDivisionError:
                assert False
            if n:
                return 1
            raise ValueError
    '''
    path = tmp_path / "module.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    counted = guards.count_module(path)
    # if, three lines of text, raise; the check; `except`, `assert`
    assert (counted.lines, counted.code, counted.guards) == (23, 17, 8)
