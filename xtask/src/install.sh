# Installs Debian packages as root without letting their services start, now or at the next boot.
# usage: sh install.sh ROOT "SERVICE..." PACKAGE...     (ROOT is empty but in tests)
set -eu
root=$1 services=$2
shift 2
policy=$root/usr/sbin/policy-rc.d
saved=$policy.before-xtask
ours="Written by lockkeeper's cargo xtask"

restore() {
    rm -f "$policy"
    if [ -e "$saved" ]; then mv "$saved" "$policy"; fi
}
# One at a time: another clone may be set up just now, and this would take its policy away. What is
# started from here on does not keep the lock, so that it ends with this run.
exec 9< "$root/usr/sbin"
flock 9
# What a run that was killed left behind.
if grep -qs "$ours" "$policy"; then restore; fi

trap restore EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
if [ -e "$policy" ]; then mv "$policy" "$saved"; fi
# invoke-rc.d asks this script; 101 forbids. It stops forbidding as soon as this run is gone, also
# when it was killed.
cat > "$policy" <<SCRIPT
#!/bin/sh
# $ours: services stay down while it installs packages.
kill -0 $$ 2>/dev/null && exit 101
if [ -x "$saved" ]; then exec "$saved" "\$@"; fi
exit 0
SCRIPT
chmod 755 "$policy"

export DEBIAN_FRONTEND=noninteractive
# Somebody else may be installing; wait for them.
install() { apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$@" 9<&-; }
# A fresh image has no package lists, an old one has stale ones: fetch them only if needed.
install "$@" || {
    apt-get update 9<&-
    install "$@"
}
for service in $services; do
    if command -v systemctl > /dev/null; then systemctl disable --quiet "$service" || true; fi
done
