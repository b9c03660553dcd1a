# Makes a Python of its own, target/interop/$1, with the packages behind that, and says where it is.
venv="$(dirname "${BASH_SOURCE[0]}")/../target/interop/$1"
shift
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$*" ]; then
    [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"
    echo "$*" > "$venv/installed"
fi
