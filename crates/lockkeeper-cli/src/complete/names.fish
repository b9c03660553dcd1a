
# Names of locks where one is wanted, commands behind `--`; files only where there are to be some.
function __fish_lockkeeper_command
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    or return
    set -l command (string escape -- $words[(math $at + 1)..-1]) (commandline -ct)
    complete -C "$command"
end
complete -c lockkeeper -f
complete -c lockkeeper -n "__fish_lockkeeper_using_subcommand check" -F
complete -c lockkeeper -n "contains -- -- (commandline -opc)" -f -a '(__fish_lockkeeper_command)'
complete -c lockkeeper -n "not contains -- -- (commandline -opc)" -f \
    -a '(commandline -cp | lockkeeper __complete 2>/dev/null)'
