"""The scripts by which shells ask `deva` for completions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_BASH: Final = r"""# Completion of `deva` for bash: source this, or put it where bash looks.
_deva() {
    local IFS=$'\n' line=${COMP_LINE:0:COMP_POINT} breaks=${COMP_WORDBREAKS//[^=:]/}
    local word=${line##*[[:space:]]} prefix="" answer flags candidate
    answer=$("$1" completion --line "$line" 2>/dev/null) || return
    flags=${answer%%$'\n'*}
    COMPREPLY=()
    # Bash takes = and : for ends of words, and has candidates begin behind them.
    if [[ -n $breaks && $word == *[$breaks]* ]]; then
        prefix=${word%"${word##*[$breaks]}"}
    fi
    while read -r candidate; do
        candidate=${candidate%%$'\t'*}
        COMPREPLY+=("${candidate#"$prefix"}")
    done < <(tail -n +2 <<<"$answer")
    [[ $flags == *nospace* ]] && compopt -o nospace 2>/dev/null
    [[ $flags == *files* ]] && compopt -o default 2>/dev/null
    return 0
}
complete -F _deva deva
"""

_ZSH: Final = r"""#compdef deva
# Completion of `deva` for zsh: put this into a folder of $fpath as _deva, or source it.
_deva() {
    local -a lines names shown options
    local line
    lines=("${(@f)$("${words[1]}" completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for line in "${(@)lines[2,-1]}"; do
        names+=("${line%%$'\t'*}")
        shown+=("${line/$'\t'/  -- }")
    done
    [[ ${lines[1]} == *nospace* ]] && options=(-S '')
    (( $#names )) && compadd -l -d shown "${options[@]}" -a names
    [[ ${lines[1]} == *files* ]] && _files
}
if [[ ${funcstack[1]} == _deva ]]; then
    _deva "$@"
else
    compdef _deva deva
fi
"""

_FISH: Final = r"""# Completion of `deva` for fish: put this into ~/.config/fish/completions.
function __deva_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    set -l lines ($program completion --words $words "$current" 2>/dev/null)
    if string match -q '*files*' -- $lines[1]
        __fish_complete_path "$current"
    end
    set -e lines[1]
    if test (count $lines) -gt 0
        printf '%s\n' $lines
    end
end
complete -c deva -f -a '(__deva_complete)'
"""

SCRIPTS: Final[Mapping[str, str]] = MappingProxyType({"bash": _BASH, "zsh": _ZSH, "fish": _FISH})
