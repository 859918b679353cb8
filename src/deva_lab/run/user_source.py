"""Where a user's task is found: in a file, in a module, or as an object of this process."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import secrets
import sys
import traceback
from contextlib import suppress
from functools import cache
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from ..errors import UsageError

CLASS: Final = "Task"  # what a module's task is called unless the user names another
_IN_MODULE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_IN_FILE: Final = re.compile(r"(.+\.py)(?::([A-Za-z_]\w*))?", re.DOTALL)

_objects: dict[str, Any] = {}  # place → what `of_object` was given
_beside: dict[str, set[str]] = {}  # folder of a task → the modules beside it that it has imported
_loading: list[str] = []  # the places that are being imported


class Source(NamedTuple):
    """A user's task as it was found.

    Attributes:
        name: What tables call it: "my_task.py", "package.module:Task".
        place: Where another process finds it: the same with the path of the file.
        text: What it is written in, as far as that is known.
        file: The name of the file with the text; "" if it is in none.
    """

    name: str
    place: str
    text: str
    file: str = ""

    @property
    def digest(self) -> str:
        """A digest of the text."""
        return hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()


def is_user_task(task: str) -> bool:
    """Whether `--task` names a task of the user's, and none of the laboratory's.

    >>> [is_user_task(name) for name in ("gpt", "my_task.py", "package.module:Task")]
    [False, True, True]
    """
    return task in _objects or bool(_IN_FILE.fullmatch(task) or _IN_MODULE.fullmatch(task))


def find(task: str) -> Source:
    """The task that a user has named; nothing of it is imported.

    Raises:
        UsageError: If there is no such file or module.
    """
    if task in _objects:
        return Source(task.partition(" ")[0], task, _source_text(task))
    if match := _IN_FILE.fullmatch(task):
        path = Path(match[1]).expanduser()
        if not path.is_file():
            raise UsageError(
                f"there is no task at {path}: `deva init-task` writes a file to start from, and "
                "the folder of a comparison has a copy of its own"
            )
        suffix = f":{match[2]}" if match[2] else ""
        place = f"{path.resolve()}{suffix}"
        return Source(path.name + suffix, place, _text_of(path), path.name)
    module = task.partition(":")[0]
    _look_in(os.getcwd())
    spec = None
    with suppress(ModuleNotFoundError, ValueError):  # the second of `__main__`
        spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not isinstance(spec.loader, SourceLoader):
        raise UsageError(
            f"--task {task}: there is no module {module} that can be imported from here; a file is "
            "named by its path, my_task.py"
        )
    path = Path(spec.origin)
    return Source(task, task, _text_of(path), path.name)


def _text_of(path: Path) -> str:
    """The text of a source file, in the encoding that Python reads it in."""
    try:
        return importlib.util.decode_source(path.read_bytes())
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"--task {path} cannot be read as Python: {error}") from error


def of_object(task: Any) -> str:
    """The place at which this process, and no other, finds an object, a class or a module."""
    for place, known in _objects.items():
        if known is task:
            return place
    name = task.__name__ if _is_written(task) else type(task).__name__
    place = f"{name} {secrets.token_hex(8)}"
    _objects[place] = task
    return place


def is_object(place: str) -> bool:
    """Whether a task is an object of this process, which no other can import."""
    return place in _objects


def load(place: str) -> Any:
    """The module, class or object of a task, imported once for each text that it has had.

    What it draws at random while it is imported is the same in every process.

    Raises:
        UsageError: If the import fails, with what is wrong and the line.
    """
    from .environment import seeded  # which needs numpy

    if place in _objects:
        return _objects[place]
    source, in_file = find(place), _IN_FILE.fullmatch(place)
    if place in _loading:
        raise UsageError(
            f"{source.name} calls compare while compare imports it: put that call under "
            '`if __name__ == "__main__":`'
        )
    _loading.append(place)
    try:
        with seeded(0):
            if in_file:
                _look_in(str(Path(in_file[1]).parent))
                module, name = _import_file(in_file[1], source.digest), in_file[2]
                sys.modules[module.__name__] = module  # another file may have had the name since
            else:
                before, _, name = place.partition(":")
                module = importlib.import_module(before)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        told = traceback.TracebackException.from_exception(error)
        vars(told)["__notes__"] = None  # would be the last lines
        said = list(told.format_exception_only())[-1].strip()
        frames = traceback.extract_tb(error.__traceback__)
        lines = [x.lineno for x in frames if in_file and x.filename == in_file[1]]
        lines += [error.lineno] if isinstance(error, SyntaxError) else []
        where = f" (line {lines[-1]})" if lines else ""
        raise UsageError(f"--task {source.name} cannot be imported: {said}{where}") from error
    finally:
        _loading.remove(place)
    if name is None:
        return getattr(module, CLASS, module)
    if not hasattr(module, name):
        raise UsageError(f"--task {place}: there is no {name} in {module.__name__}")
    return getattr(module, name)


@cache
def _import_file(path: str, digest: str) -> ModuleType:
    """The module of a file, for each of its texts, under the name that an import would give it.

    So what it defines can be pickled for processes of its own, as those of a DataLoader. The name
    of a module that is there already is not taken.
    """
    folder, name = str(Path(path).parent), Path(path).stem
    ours = _beside.setdefault(folder, set())
    if name in sys.modules and not any(name in names for names in _beside.values()):
        name = f"user_task_{name}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    before = set(sys.modules)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        ours |= {name for name in set(sys.modules) - before if _lies_in(folder, name)} | {name}
    return module


def _look_in(folder: str) -> None:
    """Let imports find what lies beside a task, and nothing that another one has beside it."""
    if folder in sys.path[1:]:
        sys.path.remove(folder)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    for other, names in _beside.items():
        if other != folder:
            for name in names:
                sys.modules.pop(name, None)


def _lies_in(folder: str, name: str) -> bool:
    """Whether a module, or the package that it is of, lies directly in a folder."""
    module = sys.modules.get(name.partition(".")[0])
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return any(str(Path(place).parent) == folder for place in places)


def _source_text(place: str) -> str:
    """What an object of this process is written in.

    What an instance holds is not seen there: its place makes it one of its own, which no result of
    another is taken for. So does that of a class whose source is not known.
    """
    task = _objects[place]
    try:
        return inspect.getsource(task) if _is_written(task) else place
    except (OSError, TypeError):
        return place


def _is_written(task: Any) -> bool:
    """Whether all of a task is in its source, and none of it in what an instance holds."""
    return inspect.isclass(task) or inspect.ismodule(task)
