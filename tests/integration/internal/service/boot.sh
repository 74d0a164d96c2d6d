# What process 1 of the new namespaces does before it is systemd. $1: files to add, $2: systemd.
mount --make-rprivate /
files=/run/execproxy-test
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p $files/etc $files/bin $files/work-etc $files/work-bin /run/lock /run/units
cp -a "$1/etc/." $files/etc/
cp -a "$1/bin/." $files/bin/
mount -t overlay -o lowerdir=/etc,upperdir=$files/etc,workdir=$files/work-etc overlay /etc
mount -t overlay -o lowerdir=/usr/bin,upperdir=$files/bin,workdir=$files/work-bin overlay /usr/bin
for d in /tmp /var/tmp; do mount -t tmpfs -o mode=1777 tmpfs $d; done
mount -t tmpfs -o mode=755 tmpfs /var/lib
for d in /sys/fs/cgroup/*; do umount -l "$d" 2>/dev/null || true; done
umount -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for t in default sysinit basic sockets shutdown network-online umount local-fs; do
	printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' $t >/run/units/$t.target
done
# As systemd makes it where it is alone: credentials are mounted from beside the service.
mount --make-rshared /
exec env -i PATH="$PATH" container=execproxy-test SYSTEMD_UNIT_PATH=/etc/execproxy-units:/run/units \
	"$2" --unit=default.target --log-target=console --log-level=info --show-status=no
