# What an administrator does with the package, in a root that is thrown away afterwards.
set -x
config=/etc/lockkeeper/config.toml
rm -rf /etc/lockkeeper

dpkg --install /tmp/lockkeeper.deb
dpkg --verify lockkeeper
lockkeeper --version
lockkeeper run nightly -- true
zcat /usr/share/man/man1/lockkeeper.1.gz | head -3
zcat /usr/share/man/man1/lockkeeper-run.1.gz | head -3
bash -n /usr/share/bash-completion/completions/lockkeeper

# systemd finds nothing to complain of in the unit and the timer, and something in a broken one.
units=/usr/lib/systemd/system
cp /usr/share/doc/lockkeeper/examples/lockkeeper-nightly.timer /etc/systemd/system/
verify() { systemd-analyze verify "$1" 2>&1 | grep -e "$2"; }
if verify $units/lockkeeper-run@nightly.service lockkeeper-run; then exit 1; fi
if verify /etc/systemd/system/lockkeeper-nightly.timer lockkeeper-nightly; then exit 1; fi
sed 's/^OnCalendar=.*/OnCalendar=never/' /etc/systemd/system/lockkeeper-nightly.timer \
    > /etc/systemd/system/lockkeeper-broken.timer
verify /etc/systemd/system/lockkeeper-broken.timer lockkeeper-broken
rm /etc/systemd/system/lockkeeper-nightly.timer /etc/systemd/system/lockkeeper-broken.timer

# The unit's command, with the environment that systemd gives a unit of root, waits for the same
# lock as root's shell.
install -d /etc/lockkeeper/run
printf '#!/bin/sh\necho ran\n' > /etc/lockkeeper/run/nightly
chmod 755 /etc/lockkeeper/run/nightly
job=$(sed -n 's/^ExecStart=//p' $units/lockkeeper-run@.service | sed 's/%i/nightly/g')
if grep -q StateDirectory $units/lockkeeper-run@.service; then exit 1; fi
unit() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LOCK=nightly OPTIONS=-n sh -c "$job"; }
test "$(unit)" = ran
test -z "$(lockkeeper run nightly -- env -i PATH=/usr/bin:/bin LOCK=nightly \
    OPTIONS=-n sh -c "$job")"
rm -r /etc/lockkeeper/run
# The shipped configuration chooses nothing.
test -z "$(grep -v '^#' $config | tr -d '\n')"

# What the administrator wrote stays over an upgrade, and a removal.
echo 'url = "file:///var/lib/lockkeeper"' > $config
dpkg --install --force-confold /tmp/next.deb
grep -q '^url' $config
grep -q 'The next release' $config.dpkg-dist
install -d /var/lib/lockkeeper
lockkeeper doctor --no-probe | grep -q 'file:///var/lib/lockkeeper'
dpkg --remove lockkeeper
test -e $config
test ! -e /usr/bin/lockkeeper

dpkg --purge lockkeeper
test ! -e /etc/lockkeeper
test -z "$(find / -xdev -path /tmp -prune -o -path /proc -prune -o -path '*/work/*' -prune \
    -o -path '/usr/share/doc/lockkeeper*' -print -o -path '*system/lockkeeper*' -print 2>/dev/null)"
if dpkg --status lockkeeper 2>/dev/null; then exit 1; fi
