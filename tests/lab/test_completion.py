"""Completion: what a word may become, and the scripts in real shells."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deva_lab.cli import main, parser
from deva_lab.commands.completion import COURSES, EXPERIMENTS, IMAGES, PLACES, STAGES, complete
from deva_lab.commands.race import STAGES as RACE_STAGES
from deva_lab.config import tree
from deva_lab.data.images import NAMES as IMAGES_BY_NAME
from deva_lab.race.entries import COURSES as RACE_COURSES
from deva_lab.race.entries import PLACES as RACE_PLACES
from deva_lab.reproduce.experiments import EXPERIMENTS as ALL_EXPERIMENTS
from deva_lab.run.settings import OPTIMIZERS, TASKS
from helpers import needs_posix

SHELLS = ("bash", "zsh", "fish")


def test_names_are_those_of_the_tables():
    assert IMAGES_BY_NAME == IMAGES
    assert tuple(RACE_STAGES) == STAGES
    assert tuple(RACE_PLACES) == PLACES
    assert tuple(RACE_COURSES) == COURSES
    assert tuple(ALL_EXPERIMENTS) == EXPERIMENTS


def words_for(line: str) -> list[str]:
    return list(complete(tree(parser()), line.split(" ")).candidates)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tr", ["train"]),
        ("compare --opt", ["--optimizers"]),
        ("compare --optimizers deva,lio", ["deva,lion"]),
        ("compare --optimizers muon:nesterov=true,lio", ["muon:nesterov=true,lion"]),
        ("compare --optimizers deva,deva:", []),
        ("train --optimizer=so", ["--optimizer=soap"]),
        ("compare --task qu", ["quadratic"]),
        ("compare --task my_task.py --data ", []),
        ("tune --bud", ["--budget"]),
        ("init-task ", ["tensors", "images", "hf"]),
        ("compare --task vit --size ", list(TASKS["vit"].presets)),
        ("compare --size ", list(TASKS["gpt"].presets)),
        ("compare --size ti --task mlp --dtype ", ["float32", "bfloat16"]),
        ("compare --launcher ", ["local", "ray", "slurm"]),
        ("race --slurm-e", ["--slurm-executor"]),
        ("train --parallel ", ["ddp", "fsdp", "hsdp"]),
        ("compare --data shake", ["shakespeare"]),
        ("compare --task mlp --data dig", ["digits"]),
        ("compare --optimizers deva,lion --baseline ", ["deva", "lion"]),
        ("compare --log wandb,", ["wandb,tensorboard", "wandb,mlflow", "wandb,none"]),
        ("methods splu", ["splus"]),
        ("bench la", ["launches"]),
        ("data ", ["prepare"]),
        ("data prepare --sh", ["--shard-tokens"]),
        ("race rob", ["robustness"]),
        ("race confirm soft --at books w", ["wide"]),
        ("reproduce fig-trace theo", ["theory"]),
        ("reproduce --scale pa", ["paper"]),
        ("completion ", list(SHELLS)),
        ("compare --steps ", []),
        ("nonsense --opt", []),
    ],
)
def test_a_word_becomes(line, words):
    assert words_for(line) == words


def test_every_option_of_every_command_is_offered():
    for name, command in tree(parser()).commands.items():
        offered = words_for(f"{name} --")
        wanted = [x for x in command.options if x.startswith("--")]
        hidden = ["--words", "--line"] if name == "completion" else []
        assert sorted(offered + hidden) == sorted(wanted)


def test_an_option_that_is_there_is_not_offered_again():
    assert words_for("train --ste") == ["--steps"]
    assert words_for("train --steps 3 --ste") == []


def test_paths_are_left_to_the_shell():
    for line, files in [("compare --out ", True), ("report ", True), ("compare --lr ", False)]:
        assert complete(tree(parser()), line.split(" ")).files is files


def test_nothing_but_the_standard_library_is_imported(tmp_path):
    code = "import sys; from deva_lab.cli import main; main(['completion', '--line', 'deva co']); "
    code += "print([m for m in ('torch', 'numpy', 'deva_optim') if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    flags, *words, modules = ended.stdout.splitlines()
    assert (flags, modules) == ("words", "[]")
    assert [word.partition("\t")[0] for word in words] == ["compare", "completion"]


# --- Shells --------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path, capsys) -> dict[str, str]:
    """An environment with the command `deva` and the scripts, in files named after the shells."""
    program = tmp_path / "deva"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m deva_lab "$@"\n')
    program.chmod(0o755)
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        (tmp_path / shell).write_text(capsys.readouterr().out)
    return {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


def said_by(shell: list[str], code: str, tmp_path: Path, programs: dict[str, str]) -> str:
    ended = subprocess.run(
        [*shell, code],
        cwd=tmp_path,
        env=programs,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


# What bash does at a Tab: it cuts the line into words, at = and : too, and calls the function.
BASH = r"""
source ./bash
[[ $(complete -p deva) == "complete -F _deva deva" ]] || exit 3
compopt() { printf '%s ' "$@"; }
try() {
    COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
    _deva deva
    printf '%s|' "${COMPREPLY[@]}"; echo
}
"""


@needs_posix
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes(tmp_path, programs):
    lines = {
        "deva com": "compare|completion|",
        "deva train --optimizer spl": "splus|",
        "deva compare --task=vi": "-o default vit|",  # behind the =
        "deva compare --optimizers muon:nesterov=true,lio": "-o nospace true,lion|",
        "deva compare --out ": "-o default |",
        "deva data prepare 'shak": "-o default shakespeare|",
    }
    code = BASH + "\n".join(f'try "{line}"' for line in lines)
    said = said_by(["bash", "--norc", "-c"], code, tmp_path, programs)
    assert said.splitlines() == list(lines.values())


@needs_posix
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_names_of_all_optimizers_come_through_bash(tmp_path, programs):
    code = BASH + 'try "deva methods "; compgen -W "${COMPREPLY[*]}" -- deva-s'
    first, *rest = said_by(["bash", "--norc", "-c"], code, tmp_path, programs).splitlines()
    assert first == "".join(f"{name}|" for name in OPTIMIZERS)
    assert rest == [name for name in OPTIMIZERS if name.startswith("deva-s")]


@needs_posix
@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_completes(tmp_path, programs):
    code = r"""
compdef() { echo "compdef $*"; }
compadd() { while [[ $1 != -a ]]; do shift; done; echo "${(P)2}"; }
_files() { echo files; }
source ./zsh
words=(deva compare --optimizers deva,lio); CURRENT=4; _deva
words=(deva data prepare shak); CURRENT=4; _deva
"""
    said = said_by(["zsh", "-f", "-c"], code, tmp_path, programs)
    assert said.splitlines() == ["compdef _deva deva", "deva,lion", "shakespeare", "files"]


@needs_posix
@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_completes(tmp_path, programs):
    code = "source ./fish; complete -C 'deva compare --optimizers deva,lio'; "
    code += "complete -C 'deva trai'"
    said = said_by(["fish", "--no-config", "-c"], code, tmp_path, programs)
    assert [line.partition("\t")[0] for line in said.splitlines()] == ["deva,lion", "train"]
