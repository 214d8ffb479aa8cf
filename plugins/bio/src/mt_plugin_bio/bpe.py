"""The tokenizer of a published folder, ``tokenizer.json``, through the library tokenizers. It is imported when a sequence is encoded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt_core import UsageError, WeightsError
from mt_core.files import panics
from mt_core.weights import contained_file

from .vocabularies import DNA, frame

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FILE = "tokenizer.json"
CLS, SEP = "[CLS]", "[SEP]"


@dataclass(frozen=True)
class FolderVocabulary:
    """Byte pairs of a folder's ``tokenizer.json``, between [CLS] and [SEP]; an N is [UNK] where the file has no token for it.

    An embedding of ``rows`` has a row for each of its ids, or it is refused.
    """

    folder: str
    rows: int
    letters: bytes = DNA

    def encode(self, letters: bytes) -> NDArray[np.int64]:
        """Return the ids of known letters."""
        import numpy as np

        found = self._tokenizer.encode(letters.decode("ascii"), add_special_tokens=False).ids
        before, behind = self._frame
        return frame(np.array(found, np.int64), (before,), (behind,))

    @cached_property
    def _tokenizer(self) -> Any:
        path = Path(self.folder)
        folder = path if path.is_dir() else path.parent
        file = contained_file(folder, FILE)
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise UsageError(
                f"{file} needs the library tokenizers, which cannot be imported here ({error});"
                " install it with pip install 'mt-plugin-bio[bpe]', or set vocabulary to kmer or character"
            ) from error
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except BaseException as error:  # the Rust side raises bare Exceptions, and panics
            if not isinstance(error, (Exception, *panics())):
                raise
            raise WeightsError(f"cannot read {file}: {error}; fetch it again") from error
        if (needed := 1 + max(tokenizer.get_vocab().values(), default=0)) > self.rows:
            raise WeightsError(
                f"{file} has {needed:,} ids, and the embedding {self.rows:,} rows; set vocab_size to {needed:,}, or for published weights"
                " take the tokenizer beside them"
            )
        tokenizer.no_truncation()  # a file may say 512, and cut in silence
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _frame(self) -> tuple[int, int]:
        found = [self._tokenizer.token_to_id(token) for token in (CLS, SEP)]
        if None in found:
            raise WeightsError(
                f"{self.folder}/{FILE} has no {CLS} or no {SEP}; it is no tokenizer of DNABERT-2, give another folder"
            )
        return found[0], found[1]
