
# Names of locks, and files where there are none.
_lockkeeper_names() {
    local -a names
    local line="${(j: :)_lockkeeper_line}" program="${(Q)_lockkeeper_line[1]}"
    # The line is as it was typed.
    program=${program/#\~\//$HOME/}
    program=${program/#\$HOME\//$HOME/}
    names=("${(@f)$("$program" __complete <<< "$line" 2>/dev/null)}")
    names=(${names:#})
    if (( $#names )); then compadd -a names; else _default; fi
}

# A command, where `words` still has what stands before it.
_lockkeeper_command() {
    local at=${words[(i)--]}
    if (( at < CURRENT )); then shift $at words; (( CURRENT -= at )); fi
    _normal
}
