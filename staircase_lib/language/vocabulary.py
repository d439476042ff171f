"""Vocabularies: byte-level BPE and whole words, trained on a corpus."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from os import PathLike
from typing import TYPE_CHECKING

from staircase_lib.language.corpus import pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = [
    "SEPARATOR",
    "UNKNOWN",
    "byte_characters",
    "separator_of",
    "token_texts",
    "train_tokenizer",
    "vocabulary_size",
    "word_tokenizer",
]

#: Token between documents.
SEPARATOR = "<|endoftext|>"
#: Token of every word that a vocabulary of words does not hold.
UNKNOWN = "<|unknown|>"
_SEPARATORS = (SEPARATOR, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")  # as families of models say


def train_tokenizer(
    corpus: str | PathLike[str],
    vocab_size: int,
    *,
    field: str = "text",
    limit: int | None = None,
) -> Tokenizer:
    r"""Byte-level BPE, trained on a corpus.

    Numbers of up to three digits and single Chinese characters are kept together before merges are
    sought, so that 1 to 999 can be tokens of their own.

    Parameters
    ----------
    corpus, field
        As in :func:`~staircase_lib.language.corpus.pieces`.
    vocab_size : int
        ``V``, at least 257: the bytes and the separator, which has id 0.
    limit : int, optional
        Characters of every text of the corpus to train on, from its start, as in
        :func:`~staircase_lib.language.corpus.pieces`. Default: all.

    Returns
    -------
    tokenizers.Tokenizer

    Raises
    ------
    ValueError
        If the vocabulary cannot hold the bytes.
    CorpusError
        As in :func:`~staircase_lib.language.corpus.pieces`.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < 257:
        raise ValueError(f"vocab_size: expected at least 257 (bytes, separator), got {vocab_size}.")
    tokenizer = Tokenizer(models.BPE())
    # Words have an end even where a text has none: merges within one cost its length squared.
    words = Regex(r"\p{N}{1,3}| ?\p{L}{1,64}| ?[^\s\p{L}\p{N}]{1,64}|\s{1,64}")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    _interruptibly(lambda: tokenizer.train_from_iterator(_texts(corpus, field, limit), trainer))
    return tokenizer


def word_tokenizer(
    corpus: str | PathLike[str],
    vocab_size: int,
    *,
    phrases: Sequence[str] = (),
    field: str = "text",
    limit: int | None = None,
) -> Tokenizer:
    r"""Whole words as tokens: for questions about words, not for a language model.

    Text is lower-cased; a token is a word, a number, a punctuation mark or one Chinese character.
    Rare ones share the token ``<|unknown|>``, id 1.

    Parameters
    ----------
    corpus, field, limit
        As in :func:`train_tokenizer`.
    vocab_size : int
        ``V``, at least 2: separator, unknown, then the most frequent.
    phrases : sequence of str
        Strings that are one token wherever they stand as such, longer ones first, for example
        Chinese names of months.

    Returns
    -------
    tokenizers.Tokenizer
    """
    import re

    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    if vocab_size < 2:
        raise ValueError(f"vocab_size: expected at least 2 (separator, unknown), got {vocab_size}.")
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    named = [re.escape(phrase.lower()) for phrase in sorted(phrases, key=len, reverse=True)]
    letter = r"[\p{L}&&[^\p{Han}]]"
    word = rf"{letter}{{1,64}}(?:['\u2019]{letter}{{1,64}})*"
    kinds = [r"\p{Han}", word, r"\p{N}{1,64}", r"[^\s\p{L}\p{N}]"]
    words = Regex("|".join([*named, *kinds]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(words, behavior="removed", invert=True)
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=[SEPARATOR, UNKNOWN], show_progress=False
    )
    _interruptibly(lambda: tokenizer.train_from_iterator(_texts(corpus, field, limit), trainer))
    return tokenizer


def _interruptibly(work: Callable[[], None]) -> None:
    """Do work that holds no Python for minutes so that signals still end the program."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if failed:
        raise failed[0]


def _texts(corpus: str | PathLike[str], field: str, limit: int | None) -> Iterator[str]:
    return (text for text, _ in pieces(corpus, field, limit))


def separator_of(tokenizer: Tokenizer) -> int:
    """Id of the token that ends a document.

    Raises
    ------
    ValueError
        If the tokenizer has none of the usual ones.
    """
    for name in _SEPARATORS:
        if (found := tokenizer.token_to_id(name)) is not None:
            return found
    raise ValueError(
        f"tokenizer: expected a token {' or '.join(_SEPARATORS)}, the separator of documents; add "
        f"one with `tokenizer.add_special_tokens`."
    )


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id; ids that no token has count too."""
    return max(tokenizer.get_vocab().values()) + 1


def token_texts(tokenizer: Tokenizer, tokens: Iterable[int]) -> list[str]:
    """Text of single tokens; bytes that are no character alone appear as ``\\xNN``."""
    found = [tokenizer.id_to_token(int(token)) or "" for token in tokens]
    decoder = b"" if tokenizer.decoder is None else tokenizer.decoder.__getstate__()
    if b"ByteLevel" not in decoder:
        return [piece.replace("\u2581", " ") for piece in found]  # as SentencePiece writes a space
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    return [
        bytes(byte_of[c] for c in piece).decode("utf-8", errors="backslashreplace")
        if all(character in byte_of for character in piece)
        else piece
        for piece in found
    ]


@cache
def byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    characters = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    return [characters[byte] for byte in range(256)]
