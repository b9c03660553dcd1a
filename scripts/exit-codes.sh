#!/bin/sh
# Reproduces the table of exit codes of `lockkeeper run`, row by row, with real processes and no
# server; what a lease adds is in the tests, which start servers.
#
#   scripts/exit-codes.sh [PATH-OF-LOCKKEEPER]
#
# Prints a line a row and exits 0 when every code is the one of the table.
set -u

here=$(cd "$(dirname "$0")/.." && pwd)
lk=${1:-}
if [ -z "$lk" ]; then
    cargo build --quiet --release --manifest-path "$here/Cargo.toml" --package lockkeeper-cli \
        || exit 1
    lk=${CARGO_TARGET_DIR:-$here/target}/release/lockkeeper
fi
case $lk in /*) ;; *) lk=$PWD/$lk ;; esac

dir=$(mktemp -d) || exit 1
holder=
trap '[ -n "$holder" ] && kill "$holder" 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM HUP
cd "$dir" || exit 1
unset LOCKKEEPER_URL LOCKKEEPER_REQUIRE LOCKKEEPER_STACK
HOME=$dir LOCKKEEPER_DIR=$dir/locks
export HOME LOCKKEEPER_DIR

wrong=0
# row CODE WHAT ARGUMENTS…: what `lockkeeper run ARGUMENTS…` exits with
row() {
    expected=$1 what=$2
    shift 2
    "$lk" run "$@" >out 2>err </dev/null
    found=$?
    verdict=ok
    if [ "$found" != "$expected" ]; then
        verdict="WRONG, expected $expected: $(cat err)"
        wrong=1
    fi
    printf '%4s  %-58s %s\n' "$found" "$what" "$verdict"
}

# wait_for FILE: until it is there and not empty
wait_for() {
    tries=0
    while [ ! -s "$1" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || { echo "waited in vain for $1" >&2; exit 1; }
        sleep 0.05
    done
}

row 0 "the command's own" a -- true
row 7 "the command's own" a -- sh -c 'exit 7'
row 143 "128+N when signal N killed it" a -- sh -c 'kill -TERM $$'
row 164 "128+N, also where N is a realtime signal" a -- sh -c 'kill -36 $$'
row 0 "a share inside a share" a -s -- "$lk" run -s a -- true

"$lk" run held -- sh -c 'echo $$ > holder; exec sleep 1000' &
holder=$!
wait_for holder
row 75 "not obtained, -n" held -n -- true
row 75 "not obtained, -w" held -w 0.2 -- true
row 3 "not obtained, -E 3" held -n -E 3 -- true
kill "$holder"
wait "$holder"
holder=
row 0 "obtained, now that nobody holds it" held -n -- true

# lost: somebody deletes the lock files while the command runs
{ wait_for lost; rm -rf locks; } &
row 79 "lost while the command ran, and it was stopped" a -- sh -c 'echo > lost; exec sleep 1000'
wait
rm -f lost
{ wait_for lost; rm -rf locks; } &
row 5 "lost, --lost-exit-code 5" a --lost-exit-code 5 -- sh -c 'echo > lost; exec sleep 1000'
wait

row 124 "--hold-at-most was over" a --hold-at-most 0.2 -- sleep 1000
row 124 "--hold-at-most was over, TERM was not enough" a --hold-at-most 0.2 --kill-after 0.2 -- sh \
    -c 'trap "" TERM; sleep 1000'

row 64 "an option that does not exist" a --no-such-option -- true
row 64 "a duration that is none" a -w abc -- true
row 64 "no command" a
row 64 "no --" a true
row 64 "a URL that is none" a --url gopher://host -- true
row 64 "a name that no lock can have" '' -- true
row 64 "--require not met" a --require hosts -- true
"$lk" run pool --permits 1/3 -- true
row 64 "another limit than the stored one" pool --permits 1/4 -- true
row 64 "would deadlock" a -- "$lk" run a -- true
row 75 "an ancestor has it, and nobody waits" a -- "$lk" run a -n -- true

row 64 "-F on an engine with leases" a -F --url redis://127.0.0.1:1 -- true
row 64 "-o on an engine with leases" a -o --url zk://127.0.0.1:1 -- true
row 64 "--kill-after of more than a third of the lease" a --kill-after 11s \
    --url redis://127.0.0.1:1 -- true
row 64 "an option of the URL that does not exist" a --url 'redis://127.0.0.1:1?colour=red' -- true
row 69 "an engine that cannot be reached, -n" a -n --url redis://127.0.0.1:1 -- true
row 69 "an engine that cannot be reached, -w" a -w 0.3 --url zk://127.0.0.1:1 -- true
row 5 "the same, --on-unreachable run" a -n --on-unreachable run --url redis://127.0.0.1:1 -- sh \
    -c 'exit 5'

row 69 "a directory that cannot be made" a --url "file://$dir/no/such/parent" -- true
mkdir one && : >one/file && ln -s file one/a.lock
row 69 "a lock file that is a symbolic link" a --url "file://$dir/one" -- true
row 126 "not executable" a -- /etc/passwd
row 127 "not found" a -- no-such-program-anywhere
row 0 "and the lock was given back each time" a -n -- true

# 125 is our own failure: here, no descriptor is left to start the command with.
limit=4
while :; do
    (ulimit -n "$limit" && exec "$lk" run a -- true) >out 2>err </dev/null
    found=$?
    [ "$found" = 125 ] || [ "$limit" -gt 20 ] && break
    limit=$((limit + 1))
done
[ "$found" = 125 ] && verdict=ok || { verdict="WRONG, expected 125"; wrong=1; }
printf '%4s  %-58s %s\n' "$found" "our own failure" "$verdict"

exit "$wrong"
