"""Read a pickle of lists, texts and integers, and nothing else.

A pickle is a program. This reader runs only the instructions that build lists, tuples, texts, integers, True,
False and None. The two globals by which NumPy writes an integer (`numpy.dtype` and `scalar`, in the spelling
of NumPy 1 or 2) are answered by stand-ins that give a plain `int`; NumPy itself is never called. Any other
global is refused by name before it is looked up, and so is every other instruction: dictionaries and sets
(hashing nested tuples can take forever), class instances, the extension registry. The standard library's
reader in Python is used because its memo is a dictionary: the one in C allocates whatever index a file names.

Errors:
    InputError: no file, a folder, an empty file, too large a file, no pickle, a forbidden global.

Source: the instructions are those of the standard library's `pickletools`.
It does not show that what was read makes sense; that is the caller's part.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path

from timonel.errors import InputError

LARGEST = 8 * 2**20
"""Bytes; N4, the only pickle that is read, has 0.8 MiB."""

_SCALAR = {("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar")}
_DTYPE = {("numpy", "dtype")}

_ALLOWED = b"".join(
    (
        pickle.PROTO + pickle.FRAME + pickle.MARK + pickle.STOP,
        pickle.EMPTY_LIST + pickle.LIST + pickle.APPEND + pickle.APPENDS,
        pickle.EMPTY_TUPLE + pickle.TUPLE + pickle.TUPLE1 + pickle.TUPLE2 + pickle.TUPLE3,
        pickle.UNICODE + pickle.BINUNICODE + pickle.SHORT_BINUNICODE + pickle.BINUNICODE8,
        pickle.SHORT_BINBYTES + pickle.BINBYTES,
        pickle.INT + pickle.BININT + pickle.BININT1 + pickle.BININT2 + pickle.LONG + pickle.LONG1,
        pickle.NONE + pickle.NEWTRUE + pickle.NEWFALSE,
        pickle.PUT + pickle.BINPUT + pickle.LONG_BINPUT + pickle.MEMOIZE,
        pickle.GET + pickle.BINGET + pickle.LONG_BINGET,
        pickle.GLOBAL + pickle.STACK_GLOBAL + pickle.REDUCE + pickle.BUILD,
    )
)


class _Integer:
    """Stand-in for an integer dtype: how many bytes, signed or not, in which order."""

    __slots__ = ("order", "signed", "size")

    def __init__(self, signed: bool, size: int) -> None:
        self.signed, self.size, self.order = signed, size, "<"

    def __setstate__(self, state: object) -> None:
        """Take the byte order from a dtype's state, `(version, order, None, ...)`."""
        if not (isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|")):
            raise pickle.UnpicklingError("a NumPy dtype has no byte order")
        self.order = state[1]


# Instances without attributes: a pickle's BUILD can set nothing on them that would outlive the reading.
class _DType:
    __slots__ = ()

    def __call__(self, name: object, *_: object) -> _Integer:
        found = re.fullmatch(r"([iu])([1248])", name) if isinstance(name, str) else None
        if found is None:
            raise pickle.UnpicklingError("a NumPy value is no integer")
        return _Integer(found[1] == "i", int(found[2]))


class _Scalar:
    __slots__ = ()

    def __call__(self, kind: object, raw: object) -> int:
        if not (isinstance(kind, _Integer) and isinstance(raw, bytes) and len(raw) == kind.size):
            raise pickle.UnpicklingError("a NumPy integer has the wrong number of bytes")
        return int.from_bytes(raw, "big" if kind.order == ">" else "little", signed=kind.signed)


class _Instructions(dict[int, Callable[..., None]]):
    def __missing__(self, code: int) -> Callable[..., None]:
        raise pickle.UnpicklingError(f"instruction {bytes([code])!r} is not one that lists of texts need")


class _Reader(pickle._Unpickler):
    dispatch = _Instructions({code: pickle._Unpickler.dispatch[code] for code in _ALLOWED})

    def __init__(self, data: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(data))
        self._path = path

    def find_class(self, module: str, name: str) -> object:
        if (module, name) in _SCALAR:
            return _Scalar()
        if (module, name) in _DTYPE:
            return _DType()
        wanted = f"{module}.{name}"[:100]
        raise InputError(
            f"{self._path} asks for the global {wanted!r}, which a pickle of texts and integers "
            "does not need, so nothing of it was run; use the file as its authors published it."
        )


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular, non-empty file of at most `LARGEST` bytes."""
    if not path.exists():
        raise InputError(f"{path} does not exist; name the pickle file itself.")
    if not path.is_file():
        raise InputError(f"{path} is a folder or a special file, not a pickle; name the pickle file itself.")
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a file that you may read.") from error
    if not data:
        raise InputError(f"{path} is empty where a pickle was expected; fetch the file again.")
    if len(data) > LARGEST:
        raise InputError(f"{path} is larger than the {LARGEST} bytes that are read; use the published file.")
    return data


def load(data: bytes, path: Path) -> object:
    """Build the lists, tuples, texts and integers that a pickle describes.

    Args:
        data: the pickle, of any protocol (a NumPy integer needs protocol 3 or later).
        path: where it came from, for the message of an error.

    Raises:
        InputError: it asks for a forbidden global (named in the message), or is no such pickle.
    """
    try:
        return _Reader(data, path).load()
    except InputError:
        raise
    except Exception as error:  # a damaged stream can fail anywhere: stack, memo, decoding, a stand-in
        reason = str(error)[:100] or type(error).__name__
        raise InputError(
            f"{path} is not a pickle of lists, texts and integers ({reason}); use the file as its authors published it."
        ) from error
