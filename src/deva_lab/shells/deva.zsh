#compdef deva
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
