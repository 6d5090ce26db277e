"""Everything that is written to disk is written here, so that it is written whole or not at all.

A file gets its bytes under a temporary name in the same folder, is flushed to the disk and then
renamed; a folder likewise. Whatever goes wrong (disk full, no permission, a kill) leaves what was
there before. The few primitive steps at the end are separate functions so that tests can stop the
process at each of them.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import re
import shlex
import shutil
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.errors import BadRun, BadValue

if TYPE_CHECKING:
    from fedshift.tree import Tree

PathLike = str | os.PathLike[str]

_TEMPORARY = ".tmp-"  # leftovers of killed writers; `sweep` deletes them
_ASIDE = ".old-"  # a folder while another takes its name; `sweep` puts it back if that never came
_count = itertools.count()


# ---------------------------------------------------------------------------- whole files


def write_bytes(path: PathLike, data: bytes) -> None:
    """Write a file as a whole, making its folder when that is missing.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_bytes(folder / "new" / "a.bin", b"abc")
    >>> (folder / "new" / "a.bin").read_bytes()
    b'abc'
    """
    path = Path(path)
    with _explained("writing", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary_name(path)
        try:
            handle = _open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                _write(handle, data)
                _sync(handle)
            finally:
                os.close(handle)
            _replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def write_text(path: PathLike, text: str) -> None:
    """Write a text file (UTF-8) as a whole."""
    write_bytes(path, _encoded(text, path))


def _encoded(text: str, path: PathLike) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadRun(
            f"cannot write {path}: character {error.start} of the text is not valid Unicode; "
            "rename what it comes from (often a file name in another encoding)"
        ) from None


def read_text(path: PathLike) -> str:
    """Read a text file (UTF-8), with a clear error when it is missing or not text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise _unreadable(path, error) from None
    except UnicodeDecodeError:
        raise BadRun(f"{path} is not a text file: it is damaged or something else") from None


# ---------------------------------------------------------------------------- tensors


def save_tensors(path: PathLike, tree: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Write named tensors and some facts as safetensors: equal content gives equal bytes.

    The facts are one metadata entry, because several would be written in random order. A checksum
    of the tensors is among them, which `load_tensors` compares.
    """
    import torch
    from safetensors.torch import save

    whole: Tree = {}
    seen: set[int] = set()
    for name in sorted(tree):
        t = tree[name].detach().cpu().contiguous()
        # Tensors that share memory cannot be stored: each gets its own.
        if t.untyped_storage().data_ptr() in seen or t.untyped_storage().nbytes() != t.nbytes:
            t = t.clone(memory_format=torch.contiguous_format)
        seen.add(t.untyped_storage().data_ptr())
        whole[name] = t
    head = {"checksum": _checksum(whole), "meta": _plain(meta)}
    write_bytes(path, save(whole, {"fedshift": json.dumps(head, sort_keys=True)}))


def load_tensors(path: PathLike) -> tuple[Tree, dict[str, Any]]:
    """Read what `save_tensors` wrote; damaged and foreign files are refused."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            head = (file.metadata() or {}).get("fedshift")
            # Copies: in the file they are not aligned, on which fast kernels' rounding depends.
            tree: Tree = {name: file.get_tensor(name).clone() for name in sorted(file.keys())}
    except OSError as error:
        raise _unreadable(path, error) from None
    except (SafetensorError, ValueError) as error:
        raise BadRun(
            f"{path} is cut short or damaged ({_one_line(error)}): delete it and continue from an "
            "older checkpoint"
        ) from None
    if head is None:
        raise BadRun(f"{path} was not written by fedshift: give a file from a run folder")
    try:
        content = json.loads(head)
        checksum, meta = content["checksum"], dict(content["meta"])
    except (ValueError, KeyError, TypeError):
        raise BadRun(
            f"{path} has an unreadable header: delete it and continue from an older one"
        ) from None
    if checksum != _checksum(tree):
        raise BadRun(
            f"{path} is damaged (its checksum differs): delete it and continue from an older one"
        )
    return tree, meta


def _checksum(tree: Tree) -> int:
    import torch

    value = 0
    for name in sorted(tree):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tree[name].reshape(-1).view(torch.uint8).numpy().data, value)
    return value


# ---------------------------------------------------------------------------- JSON


_ENCODE = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode
_AS_IT_IS = frozenset((bool, int, str))


def append_lines(path: PathLike, records: Iterable[Mapping[str, Any]]) -> None:
    """Append records as lines of JSON, on the disk when this returns.

    A write that fails is taken back, and so is the broken last line of a writer that was killed.
    """
    path = Path(path)
    data = _encoded("".join(map(_line, records)), path)
    with _explained("writing", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        handle = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            size = _end_of_last_line(handle)
            try:
                os.ftruncate(handle, size)
                os.lseek(handle, size, os.SEEK_SET)
                _write(handle, data)
                _sync(handle)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)
        if new:
            _sync_folder(path.parent)


def cut(path: PathLike, size: int) -> None:
    """Shorten a file to a size in bytes, on the disk when this returns."""
    path = Path(path)
    with _explained("writing", path):
        handle = _open(path, os.O_RDWR)
        try:
            os.ftruncate(handle, size)
            _sync(handle)
        finally:
            os.close(handle)


def write_lines(path: PathLike, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records as lines of JSON in place of what the file held."""
    write_text(path, "".join(map(_line, records)))


def read_lines(path: PathLike, whole: bool = False) -> list[dict[str, Any]]:
    """Read lines of JSON; a broken last line (the writer was killed) is left out.

    With `whole`, such a line is an error: what is read is known to end with a line's end.
    """
    lines = read_text(path).split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError
        except ValueError:
            if number == len(lines) and not whole:  # only the last line has no line break after it
                break
            raise BadRun(f"{path}, line {number}, is not a JSON object: restore it") from None
        records.append(record)
    return records


def write_json(path: PathLike, value: Any) -> None:
    """Write JSON with sorted keys; NaN and infinities, which JSON lacks, become null."""
    write_text(path, json.dumps(_plain(value), indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path: PathLike) -> Any:
    """Read JSON."""
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise BadRun(f"{path} is not valid JSON ({_one_line(error)}): mend or delete it") from None


def _line(record: Mapping[str, Any]) -> str:
    return _ENCODE(_plain(record)) + "\n"


def _plain(value: Any) -> Any:
    """What JSON can hold: numbers of torch and numpy as Python's, NaN and infinities as None."""
    if value is None or type(value) in _AS_IT_IS:  # exactly: this is asked of every number written
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, int | str):
        return value
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    raise BadValue(f"cannot store a {type(value).__name__} as JSON: give numbers, text or lists")


# ---------------------------------------------------------------------------- TOML


def dumps_toml(table: Mapping[str, Any]) -> str:
    """Write a dictionary as TOML; keys whose value is None are left out, as TOML has no null.

    >>> print(dumps_toml({"lr": 0.01, "note": None, "method": {"name": "fedfa", "my p": [1, 2]}}))
    lr = 0.01
    <BLANKLINE>
    [method]
    name = "fedfa"
    "my p" = [1, 2]
    <BLANKLINE>
    """
    lines: list[str] = []
    _toml_table(table, (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def read_toml(path: PathLike) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise BadRun(f"{path} is not valid TOML ({_one_line(error)}): mend that place") from None


def write_toml(path: PathLike, table: Mapping[str, Any]) -> None:
    """Write a dictionary as a TOML file."""
    write_text(path, dumps_toml(table))


def _toml_table(table: Mapping[str, Any], where: tuple[str, ...], lines: list[str]) -> None:
    inner = []
    for key, value in table.items():
        if not isinstance(key, str):
            raise BadValue(f"cannot write the key {key!r} as TOML: keys must be text")
        if isinstance(value, Mapping):
            inner.append((key, value))
        elif value is not None:
            lines.append(f"{_toml_key(key)} = {_toml_value(value, (*where, key))}")
    for key, value in inner:
        path = (*where, key)
        lines += ["", f"[{'.'.join(map(_toml_key, path))}]"]
        _toml_table(value, path, lines)


def _toml_value(value: Any, where: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, str | os.PathLike):
        return _toml_string(os.fspath(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml_value(v, where) for v in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{_toml_key(k)} = {_toml_value(v, (*where, k))}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    if hasattr(value, "tolist"):
        return _toml_value(value.tolist(), where)
    raise BadValue(
        f"cannot write {'.'.join(where)} as TOML: it is {value!r}; give text, numbers, "
        "true or false, or lists and tables of them"
    )


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_string(key)


def _toml_string(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---------------------------------------------------------------------------- whole folders


def temporary_folder(final: PathLike) -> Path:
    """A new empty folder beside `final`, to be filled and given to `commit_folder`."""
    folder = _temporary_name(Path(final))
    with _explained("writing", folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    return folder


def commit_folder(temporary: PathLike, final: PathLike) -> None:
    """Give a filled folder its final name: whoever looks sees all of it or none of it.

    A folder of that name is replaced; `sweep` restores it should the process die in between.

    >>> import tempfile
    >>> final = Path(tempfile.mkdtemp()) / "checkpoint" / "round-000012"
    >>> folder = temporary_folder(final)
    >>> write_text(folder / "a.txt", "whole")
    >>> commit_folder(folder, final)
    >>> [p.name for p in final.parent.iterdir()]
    ['round-000012']
    """
    temporary, final = Path(temporary), Path(final)
    aside = final.parent / (_ASIDE + final.name)
    with _explained("writing", final):
        try:
            for root, _, names in os.walk(temporary):
                for name in names:
                    handle = _open(Path(root, name), os.O_RDONLY)
                    try:
                        _sync(handle)
                    finally:
                        os.close(handle)
                _sync_folder(Path(root))
            if final.exists():
                if aside.exists():
                    _delete(aside)
                _replace(final, aside)
            try:
                _replace(temporary, final)
            except BaseException:
                if aside.exists():
                    _replace(aside, final)
                raise
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _sync_folder(final.parent)
        if aside.exists():
            _delete(aside)


def delete_folder(folder: PathLike) -> None:
    """Delete a folder; half deleted, it never bears its name."""
    folder = Path(folder)
    with _explained("deleting", folder):
        gone = _temporary_name(folder)
        _replace(folder, gone)
        _delete(gone)


def keep_newest(folder: PathLike, prefix: str, keep: int = 1) -> None:
    """Delete all but the last `keep` (by name) of the folders whose name starts with a prefix."""
    older = folders(folder, prefix)[: -keep or None]
    for path in older:
        delete_folder(path)


def folders(folder: PathLike, prefix: str = "") -> list[Path]:
    """The folders whose name starts with a prefix, by name; none where `folder` is missing."""
    try:
        found = [p for p in Path(folder).iterdir() if p.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(folder, error) from None
    return sorted(p for p in found if p.name.startswith(prefix) and p.name[0] != ".")


def sweep(folder: PathLike) -> None:
    """Clear a folder of what killed writers left; call it when nobody else writes there."""
    folder = Path(folder)
    if not folder.is_dir():
        return
    with _explained("clearing", folder):
        for path in sorted(folder.iterdir()):
            if path.name.startswith(_ASIDE):
                final = folder / path.name.removeprefix(_ASIDE)
                if final.exists():
                    _delete(path)
                else:
                    _replace(path, final)
            elif path.name.startswith(_TEMPORARY):
                _delete(path)


# ---------------------------------------------------------------------------- errors


@contextlib.contextmanager
def _explained(doing: str, path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one line: what, where, remedy."""
    try:
        yield
    except OSError as error:
        raise BadRun(_explanation(error, doing, path)) from error


def _explanation(error: OSError, doing: str, path: Path) -> str:
    again = f"{_resume_hint(path)}; what was there before is intact"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"disk full while {doing} {path}; free space and {again}"
        case errno.EFBIG:
            return f"file size limit reached while {doing} {path}; raise it (ulimit -f) and {again}"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"no permission for {doing} {path}; give it, or choose another folder (--out)"
        case errno.ENAMETOOLONG:
            return f"name too long for {doing} {path}; choose a shorter one"
        case errno.ENOTDIR | errno.EISDIR | errno.EEXIST:
            return f"{doing} {path} failed: a file and a folder share a name; move one away"
        case _:
            reason = (error.strerror or _one_line(error)).lower()
            return f"{reason} while {doing} {path}; mend that and {_resume_hint(path)}"


def resuming(folder: PathLike, command: str = "run") -> str:
    """The command line that continues what a folder holds, ready to be pasted.

    >>> resuming("my runs/a")
    "fedshift run --resume 'my runs/a'"
    """
    return f"fedshift {command} --resume {shlex.quote(str(folder))}"


def _resume_hint(path: Path) -> str:
    """How to go on: the run folder above a path is known by its config.toml."""
    for folder in path.parents:
        if (folder / "config.toml").is_file():
            return f"resume with: {resuming(folder)}"
    return "try again"


def _unreadable(path: PathLike, error: OSError) -> BadRun:
    if isinstance(error, FileNotFoundError):
        return BadRun(f"{path} does not exist: check the path")
    if isinstance(error, IsADirectoryError):
        return BadRun(f"{path} is a folder: give a file")
    return BadRun(f"cannot read {path} ({error.strerror or error}): check its permissions")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


# ---------------------------------------------------------------------------- primitive steps


def _temporary_name(path: Path) -> Path:
    return path.parent / f"{_TEMPORARY}{os.getpid()}-{next(_count)}"


def _open(path: Path, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666)


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:  # the system may take less than it is given
        view = view[os.write(handle, view) :]


def _sync(handle: int) -> None:
    os.fsync(handle)


def _replace(source: Path, target: Path) -> None:
    os.replace(source, target)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _sync_folder(folder: Path) -> None:
    """Make a rename lasting. Some file systems cannot, and then there is nothing to do."""
    handle = _open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


def _end_of_last_line(handle: int) -> int:
    """Where the last whole line of an open file ends."""
    end = os.fstat(handle).st_size
    while end:
        start = max(0, end - 65536)
        block = os.pread(handle, end - start, start)
        if (cut := block.rfind(b"\n")) >= 0:
            return start + cut + 1
        end = start
    return 0
