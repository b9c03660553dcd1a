
# Names of locks where one is wanted, commands behind `--`. Words that would have to be quoted are
# left out.
_lockkeeper_named() {
    local at
    for ((at = 1; at < COMP_CWORD; at++)); do
        if [[ ${COMP_WORDS[at]} == -- ]]; then
            if declare -F _command_offset > /dev/null; then
                _command_offset $((at + 1))
            else
                COMPREPLY=($(compgen -c -- "$2"))
            fi
            return
        fi
    done
    _lockkeeper "$@"
    local line="${COMP_LINE:0:COMP_POINT}" name program="${COMP_WORDS[0]}"
    # The line is as it was typed.
    program=${program/#\~\//$HOME/}
    program=${program/#\$HOME\//$HOME/}
    local word="${line##*[[:space:]]}"
    # Readline has words of its own: it replaces what follows the last colon alone.
    local head="${word%"${word##*[:=]}"}"
    local names=()
    while IFS= read -r name; do
        [[ -n $name && $name != *[!A-Za-z0-9._/@%+=:,-]* ]] && names+=("${name#"$head"}")
    done < <("$program" __complete <<< "$line" 2> /dev/null)
    if ((${#names[@]})); then
        COMPREPLY=("${names[@]}")
    fi
}
