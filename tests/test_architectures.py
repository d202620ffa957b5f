# SPDX-License-Identifier: GPL-2.0-only
"""scripts/architectures.sh lists the architectures of the module, and of the packages. The packages
name theirs, too."""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A line for each architecture: its name, what `uname -m` prints, and `module` and `packages` if
# there are a module and packages for it.
LIST = """
. "$1/scripts/lib.sh"
for name in $architectures; do
	use_architecture "$name"
	echo "$name $arch_cpu $(! has_module || echo module) $(! has_packages || echo packages)"
done
"""


class Architectures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        listed = subprocess.run(["bash", "-c", LIST, "list", ROOT], stdout=subprocess.PIPE,
                                text=True, check=True).stdout.splitlines()
        cls.all = {name: cpu for name, cpu, *_ in map(str.split, listed)}
        cls.of_module, cls.of_packages = (
            {name for name, _, *kinds in map(str.split, listed) if kind in kinds}
            for kind in ("module", "packages"))

    def test_the_list(self):
        self.assertEqual(set(self.all), {"amd64", "arm64", "s390x"})
        self.assertEqual(self.of_module, {"amd64", "arm64"})
        self.assertLessEqual(self.of_packages, self.of_module)
        self.assertIn("amd64", self.of_packages)

    def test_the_module_has_code_for_them(self):
        kbuild = (ROOT / "Kbuild").read_text(encoding="utf-8")
        chosen = re.search(r"^sfu-arch := (.*)$", kbuild, re.MULTILINE)[1]
        cpus = {self.all[name] for name in self.of_module}
        self.assertEqual(set(re.findall(r",(\w+)\)", chosen)), cpus)
        for cpu in cpus:
            for place in ("rust/%s/mod.rs", "rust/c/%s/machine.h", "rust/sframe/src/%s/mod.rs",
                          "rust/kernel-shim/%s.mk"):
                self.assertTrue((ROOT / (place % cpu)).exists(), place % cpu)

    def test_sframectl_is_packaged_for_them(self):
        control = (ROOT / "debian/control").read_text(encoding="utf-8")
        found = re.search(r"^Package: sframectl\nArchitecture: (.*)$", control, re.MULTILINE)
        self.assertEqual(set(found[1].split()), self.of_packages)

    def test_dkms_builds_for_them(self):
        conf = (ROOT / "dkms.conf").read_text(encoding="utf-8")
        pattern = re.search(r'^BUILD_EXCLUSIVE_ARCH="(.*)"$', conf, re.MULTILINE)[1]
        built = {name for name, cpu in self.all.items() if re.search(pattern, cpu)}
        self.assertEqual(built, self.of_packages)

    def test_packages_of_other_distributions_are_for_them(self):
        for place, pattern in (("PKGBUILD", r"^arch=\((.*)\)$"),
                               ("sframe_unwind-kmod.spec", r"^ExclusiveArch: (.*)$")):
            text = (ROOT / "packaging" / place).read_text(encoding="utf-8")
            found = re.search(pattern, text, re.MULTILINE)[1].split()
            self.assertEqual(set(found), {self.all[name] for name in self.of_packages}, place)


if __name__ == "__main__":
    unittest.main()
