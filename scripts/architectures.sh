# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# All that differs between architectures, for the scripts and the tests. The names are Debian's.
# Sourced by lib.sh, never run.

architectures='amd64 arm64 s390x'

# The architectures that the module is written for. On any other architecture a guest boots without
# the module.
module_architectures='amd64 arm64'

# The architectures that packages are made for: sframectl is written for these. dkms.conf,
# debian/control and the files of packaging/ have them, some by other names;
# tests/test_architectures.py compares all.
package_architectures='amd64'

# The architecture of the prepared root: its programs run on this machine.
root_architecture=amd64

# use_architecture NAME - sets `architecture`, the place of what is built, and what differs:
#
#   arch_cpu      what `uname -m` says: also in names of QEMU's programs and of compilers
#   arch_kbuild   what the kernel's makefiles call it
#   arch_cloud    the flavour of Debian's kernel for virtual machines
#   arch_qemu     the package with QEMU
#   arch_machine  QEMU's options for the machine, for its memory, for the chardev `log` as its
#                 console, for the ports of virtio-serial, and for the guest's root as `root`
#   arch_console  the kernel's name of that console
#   arch_features CPU features; arch_counted: further ones for --icount
#   arch_modules  modules that are needed to mount the root; arch_mount: options of mount for it
use_architecture() {
	local log='-serial chardev:log' ports='-device virtio-serial-pci'
	local memory='-object memory-backend-memfd,id=mem,size=3G,share=on -numa node,memdev=mem'
	local files='-chardev socket,id=fs,path=/run/virtiofs'
	files+=' -device vhost-user-fs-pci,chardev=fs,tag=root'
	arch_features=max arch_counted=
	arch_modules='virtio_pci virtiofs' arch_mount='-t virtiofs'
	case $1 in
	amd64)
		arch_cpu=x86_64 arch_kbuild=x86 arch_cloud=cloud-amd64 arch_qemu=qemu-system-x86
		arch_console=ttyS0
		# `rep movsb` would count as one instruction for each byte.
		arch_counted=,-erms,-fsrm
		# Nothing is plugged in while the guest runs. The ACPI tables for hot-plugging are
		# most of all ACPI tables, and the debug kernel took a minute to read them.
		arch_machine="-global PIIX4_PM.acpi-root-pci-hotplug=off
			-global PIIX4_PM.acpi-pci-hotplug-with-bridge-support=off
			-global PIIX4_PM.memory-hotplug-support=off $memory $files $log $ports"
		;;
	arm64)
		arch_cpu=aarch64 arch_kbuild=arm64 arch_cloud=cloud-arm64 arch_qemu=qemu-system-arm
		arch_console=ttyAMA0
		# QEMU is several times slower with the architecture's own pointer authentication.
		arch_features=max,pauth-impdef=on
		arch_machine="-M virt,gic-version=3 $memory $files $log $ports"
		;;
	s390x)
		arch_cpu=s390x arch_kbuild=s390 arch_cloud=s390x arch_qemu=qemu-system-s390x
		arch_console=ttysclp0
		# FUSE has the guest's byte order, which virtiofsd does not convert. 9p has its own.
		files='-fsdev local,id=fs,path=/run/guest,security_model=none'
		files+=' -device virtio-9p-ccw,fsdev=fs,mount_tag=root'
		arch_modules='9pnet_virtio 9p'
		arch_mount='-t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=262144'
		arch_machine="-M s390-ccw-virtio $files -device sclpconsole,chardev=log
			-device virtio-serial-ccw"
		;;
	*) die "unknown architecture ${1:-(none)}; there are $architectures" ;;
	esac
	architecture=$1
	# Below the checkout. in_root and guests see it as /src/build.
	built=build
	[ "$architecture" = "$root_architecture" ] || built=build/$architecture
}

# is_foreign - whether programs of the architecture do not run on this machine.
is_foreign() { [ "$architecture" != "$root_architecture" ]; }

# has_module - whether the module is written for the architecture.
has_module() { [[ " $module_architectures " = *" $architecture "* ]]; }

# has_packages - whether packages are made for the architecture: the module, and sframectl.
has_packages() { [[ " $package_architectures " = *" $architecture "* ]]; }
