# Completion of `deva` for fish: put this into ~/.config/fish/completions.
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
