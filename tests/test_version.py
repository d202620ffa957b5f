# SPDX-License-Identifier: GPL-2.0-only
"""The module, the tools, the core, the changelog and the packages have one version; DKMS and
doctor have the same demands."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACES = {
    "CHANGELOG.md": r"^## \[(\d+\.\d+\.\d+)\]",
    "Cargo.toml": r'^version = "(.*)"',
    "dkms.conf": r'^PACKAGE_VERSION="(.*)"',
    "packaging/PKGBUILD": r"^pkgver=(.*)",
    "packaging/sframe_unwind-kmod.spec": r"^Version: (.*)",
    "rust/c/hook.c": r'^MODULE_VERSION\("(.*)"\);',
}


class Version(unittest.TestCase):
    def test_all_places_have_one_version(self):
        found = {}
        for place, pattern in PLACES.items():
            match = re.search(pattern, (ROOT / place).read_text(), re.MULTILINE)
            self.assertIsNotNone(match, f"{place} has no version")
            found[place] = match[1]
        self.assertEqual(len(set(found.values())), 1, found)

    def test_members_of_the_workspace_inherit_the_version(self):
        members = re.search(r"^members = \[(.*?)\]", (ROOT / "Cargo.toml").read_text(),
                            re.DOTALL | re.MULTILINE)[1]
        for member in re.findall(r'"(.*?)"', members):
            manifest = (ROOT / member / "Cargo.toml").read_text()
            self.assertRegex(manifest, r"(?m)^version\.workspace = true$", member)

    def test_dkms_takes_the_kernels_that_doctor_takes(self):
        dkms = (ROOT / "dkms.conf").read_text()
        doctor = (ROOT / "tools/sframectl/src/doctor.rs").read_text()
        pattern = re.search(r'^BUILD_EXCLUSIVE_KERNEL="(.*)"', dkms, re.MULTILINE)[1]
        first, last = re.findall(r"\((\d+), (\d+)\)",
                                 re.search(r"const KERNELS: .*", doctor)[0].split("=")[1])
        first, last = tuple(map(int, first)), tuple(map(int, last))
        for major in range(4, 12):
            for minor in range(30):
                for rest in ("", ".0-amd64", "-rc3", "+deb13-cloud-amd64"):
                    release = f"{major}.{minor}{rest}"
                    # bash's =~ looks for the pattern anywhere.
                    self.assertEqual(bool(re.search(pattern, release)),
                                     first <= (major, minor) <= last, release)

    def test_dkms_asks_for_the_options_that_doctor_asks_for(self):
        dkms = (ROOT / "dkms.conf").read_text()
        doctor = (ROOT / "tools/sframectl/src/doctor.rs").read_text()
        wanted = re.search(r'^BUILD_EXCLUSIVE_CONFIG="(.*)"', dkms, re.MULTILINE)[1].split()
        options = re.search(r"const OPTIONS: .*?\[(?!&)(.*?)\];", doctor, re.DOTALL)[1]
        self.assertEqual(wanted, re.findall(r'"(\w+)"', options))


if __name__ == "__main__":
    unittest.main()
