# Completion of `deva` for bash: source this, or put it where bash looks.
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
