"""A change of what users build on shows in a diff, and is made on purpose or not at all."""

import difflib

import public_api


def test_the_public_api_is_the_one_written_down() -> None:
    written = public_api.SNAPSHOT.read_text(encoding="utf-8").splitlines()
    difference = difflib.unified_diff(
        written, public_api.describe().splitlines(), "public_api.txt", "the code", lineterm="", n=1
    )
    assert not (lines := list(difference)), (
        "the public API has changed; if that is meant, run `make public-api`, commit the file and "
        "tell of it in CHANGELOG.md (docs/deprecation.md)\n" + "\n".join(lines)
    )
