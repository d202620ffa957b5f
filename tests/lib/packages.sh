# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# Tests of the packages on machines that scripts/prepare-machine has installed. Sourced by the
# stages packages-*.

# packages MACHINE [MODE] - on a machine that scripts/prepare-machine has installed, with its own
# kernel. The packages are installed in its root before it boots, at the host's speed; in the mode
# `live`, once it runs. The modes are those of tests/guest/packages.
packages() {
	local suite=$1 mode=${2-ready} name=packages-${2:-$1} machine share image release
	local parameters="console=ttyS0 root=/dev/vda rw quiet loglevel=5"
	machine=$("$SRC/scripts/prepare-machine" "$suite")
	share=$results/$name
	mkdir -p "$share/deb" "$share.root"
	# make-deb makes build/deb anew, also for a stage that runs beside this one.
	check "make deb" flock "$SRC/build/deb.lock" \
		bash -euc '"$1" && cp "$2"/*.deb "$3"' packages \
		"$SRC/scripts/make-deb" "$SRC/build/deb" "$share/deb"
	cp "$SRC"/tests/guest/{lib.sh,whole.py} "$share/"
	cp "$SRC/tests/guest/packages" "$share/run"
	[ ! -e "$machine/newer" ] || cp -r "$machine/newer" "$share/"
	echo "$mode" >"$share/mode"
	quietly mke2fs -q -F -t ext4 -d "$share" "$share.scripts" 512M
	made="the machine is made; DKMS builds the module"
	[ "$mode" != live ] || made+=" later"
	check "$suite: $made" \
		unshare --mount --pid --fork bash -euc '
		root=$1.root
		mount -t tmpfs tmpfs "$root"
		mkdir "$root/upper" "$root/work" "$root/machine"
		mount -t overlay overlay "$root/machine" -o "lowerdir=$2/root" \
			-o "upperdir=$root/upper,workdir=$root/work"
		if [ "$3" != live ]; then
			mount -t proc proc "$root/machine/proc"
			mount --bind "$1" "$root/machine/mnt"
			chroot "$root/machine" /usr/bin/env -i /mnt/run install
			[ "$3" != refused ] ||
				chroot "$root/machine" /usr/bin/env -i /mnt/run firmware "$4"
			umount "$root/machine/proc" "$root/machine/mnt"
		fi
		mke2fs -q -F -t ext4 -d "$root/machine" "$1.disk" 6G
	' packages "$share" "$machine" "$mode" "$parameters"
	mkdir "$share.boot"
	cp "$machine"/{vmlinuz,initrd.img} "$share.boot/"
	case $mode in
	ready | live) boot_machine 1 ;;
	refused)
		boot_machine 1
		boot_machine 2
		;;
	upgrade)
		boot_machine 1
		for image in vmlinuz initrd.img; do
			release=$(debugfs -R "ls -p /boot" "$share.disk" 2>/dev/null | cut -d/ -f6 |
				sed -n "s/^$image-//p" | sort -V | tail -n 1)
			debugfs -R "dump /boot/$image-$release $share.boot/$image" \
				"$share.disk" 2>/dev/null
		done
		boot_machine 2
		;;
	esac
	rm -f "$share.disk"
	tr -d '\r' <"$share.log" |
		sed -nE "/^((not )?ok|#)/s/^((not )?ok - )?/\1$suite: /p" | sed "s/^$suite: #/#/"
	grep -q '^status 0' "$share.log" || echo "not ok - $suite: the test did not get to its end"
}

# boot_machine NUMBER - boots the machine of `packages`, for the first or the second time.
boot_machine() {
	local at=/src/${share#"$SRC/"} options try size status=0
	if [ "$mode" = refused ]; then
		options=(
			-machine "q35,smm=on" -global "driver=cfi.pflash01,property=secure,value=on"
			-drive "if=pflash,format=raw,unit=0,readonly=on,file=$at/firmware/code.fd"
			-drive "if=pflash,format=raw,unit=1,file=$at/firmware/$1.fd"
			-drive "file=$at/firmware/esp,if=virtio,format=raw,readonly=on"
		)
	else
		options=(-kernel "$at.boot/vmlinuz" -initrd "$at.boot/initrd.img"
			-append "$parameters")
	fi
	for try in 1 2; do
		size=$(stat -c %s "$share.log" 2>/dev/null || echo 0)
		# The script in the guest prints a line as soon as it runs.
		in_root bash -euc '
			at=$1 size=$2; shift 2
			timeout 7200 qemu-system-x86_64 \
				-accel tcg,thread=multi -cpu max -smp 2 -m 3G -nodefaults \
				-no-user-config -display none -monitor none \
				-drive "file=$at.disk,if=virtio,format=raw,cache=unsafe" \
				-drive "file=$at.scripts,if=virtio,format=raw,readonly=on" \
				-chardev "file,id=kernel,path=$at.kernel,append=on" \
				-serial chardev:kernel \
				-chardev "file,id=log,path=$at.log,append=on" \
				-serial chardev:log "$@" </dev/null &
			qemu=$!
			{ sleep 600; [ "$(stat -c %s "$at.log")" != "$size" ] || kill $qemu; } &
			wait $qemu' boot_machine "$at" "$size" "${options[@]}" &&
			status=0 || status=$?
		[ "$(stat -c %s "$share.log")" = "$size" ] || break
		[ "$try" = 2 ] || say "the $suite machine did not come up; booting it once more"
	done
	[ "$status" = 0 ] || echo "not ok - $suite: QEMU ended with status $status"
}

