"""The official files of COGS: read from a folder, or fetched once.

The folder is that which ``ANCHOR_INTERP_COGS`` names, with files such as ``train.tsv`` or
``train.tsv.xz``. Without it, a file is fetched into the user's cache. In both cases its SHA-256
tells that it is the file of https://github.com/najoungkim/COGS at commit 165a7b6 (MIT licence).
"""

import functools
import hashlib
import lzma
import os
import re
from pathlib import Path

from anchor_interp._util.errors import ConfigError, StoreError, raising
from anchor_interp._util.files import cache_folder, is_there, read_bytes, write_output
from anchor_interp._util.schema import checked_path
from anchor_interp.realistic.cogs_corpus import Row

FOLDER_VARIABLE = "ANCHOR_INTERP_COGS"
"""The environment variable with the folder of the files."""
SOURCE = (
    "https://raw.githubusercontent.com/najoungkim/COGS/"
    "165a7b669eade971fa47bf568a2e51925360fed8/data"
)
SHA256 = {
    "train": "220b3804b562c0156ee986eff1bdd15c27e52142549362a64f57baf86e304c78",
    "dev": "ab66388a309c7ac1ad210c781a6a0ce12281a9ef24619a12422a752cef61bc21",
    "test": "68f8e51e9f6d9cd22d64efe68dd21d7ea5ba327e9a2359481030161aea757035",
    "gen": "d013d9eee0bafc153f8decc85f42814ac97260f84964d980e1e2b84577b82361",
}
"""The checksums of the plain files."""
_MOST_BYTES = 1 << 24
_TIMEOUT = 60  # seconds without an answer


@functools.lru_cache(maxsize=8)
def official_rows(name: str) -> list[Row]:
    """The rows of an official file: ``train``, ``dev``, ``test`` or ``gen``.

    "TV" becomes "tv", its name in logical forms. ConfigError if the file is not there, is another
    one, or cannot be fetched.
    """
    if folder := os.environ.get(FOLDER_VARIABLE):
        path = checked_path(folder, FOLDER_VARIABLE) / f"{name}.tsv"
        path = path if is_there(path) else path.with_suffix(".tsv.xz")
    else:
        path = _fetched(name)
    advice = f"; put the files of COGS into the folder that {FOLDER_VARIABLE} names, or unset it"
    with raising(ConfigError, "", advice, of=StoreError):
        data = read_bytes(path.resolve(), limit=_MOST_BYTES)
    if path.suffix == ".xz":
        with raising(ConfigError, f"{path} is damaged: ", "; copy it again", of=lzma.LZMAError):
            data = lzma.LZMADecompressor().decompress(data, _MOST_BYTES)
    text = _verified(data, name, str(path)).decode()
    return [Row(*line.split("\t")) for line in re.sub(r"\bTV\b", "tv", text).splitlines()]


def _fetched(name: str) -> Path:
    """A file in the cache, fetched if it is not there."""
    path, url = cache_folder() / "cogs" / f"{name}.tsv", f"{SOURCE}/{name}.tsv"
    if not is_there(path):
        import http.client  # here: they take a tenth of the time to load the package
        import urllib.request

        advice = f"; try again with a network, or name a folder of the files in {FOLDER_VARIABLE}"
        kinds = (OSError, http.client.HTTPException)
        with (
            raising(ConfigError, f"cannot fetch {url}: ", advice, of=kinds),
            urllib.request.urlopen(url, timeout=_TIMEOUT) as answer,
        ):
            data = answer.read(_MOST_BYTES)
        write_output(path, _verified(data, name, url))
    return path


def _verified(data: bytes, name: str, where: str) -> bytes:
    """The contents, if they are those of the official file."""
    if (sha256 := hashlib.sha256(data).hexdigest()) != SHA256[name]:
        text = f"{where} is not the official {name}.tsv: its SHA-256 is {sha256[:16]}..."
        raise ConfigError(f"{text}; remove it and copy or fetch it again")
    return data
