# SPDX-License-Identifier: GPL-2.0-only
"""The stages of the tests: one file a stage, in tests/stages. Its first lines are comments with
fields.

    # proves: stacks at uprobes, and with return addresses that uretprobes replaced
    # script: probes
    # cpus: 2
    # kernel: debian; minutes: 3; tier: change
    # kernel: debug; minutes: 8; tier: night

Each `kernel` line is one stage. It has the name of the file if it is the only one, or on the kernel
`debian`; on another kernel it is KERNEL:FILE. `arch` is the architecture of the kernel, Debian's
name (amd64); a stage of another one is ARCH:FILE, or ARCH:KERNEL:FILE. `minutes` is the duration of
the stage alone on two cores, and `tier` says which command runs it: see TIERS. `;` ends a field of
a `kernel` line.

A file with a `script` is run in a guest: a script of tests/guest, with its arguments. Stages with
the same kernel, architecture, CPUs and clock share a boot. Any other file is a program for bash,
with `kernel: host` if it boots no guest, or more than one. It finds its name, kernel, architecture
and minutes in STAGE, STAGE_KERNEL, STAGE_ARCH and STAGE_MINUTES.

Further fields: `cpus: N` are the CPUs of the guest (1). `clock: icount` lets the guest count
instructions. `packages: SET` are packages that scripts/prepare-programs unpacks for the script.
`boot: own` is for a script that leaves the guest in a state that no other script expects. `needs:
nothing` is for a stage that needs neither the test programs nor sframectl.
"""

import collections
import pathlib
import re

# The command that runs a tier, and when.
TIERS = {
    "change": "make test: before each change lands",
    "night": "make test-night: once a day, and before an issue is closed",
    "release": "tests/run NAME: before a release; hours",
}
# Scripts share a boot for so many minutes, so that two workers end at about the same time.
BOOT_MINUTES = 12
FIELD = re.compile(r"# (\w+): (.*)")
KEYS = {"proves", "script", "arch", "cpus", "clock", "packages", "boot", "needs", "kernel",
        "minutes", "tier"}
# The architecture of a stage that names none.
ARCH = "amd64"

Stage = collections.namedtuple(
    "Stage", "name file kernel arch minutes tier proves script cpus clock packages boot needs")
Job = collections.namedtuple("Job", "stages minutes command environment needs_programs")


class BadStage(Exception):
    """A stage's file does not say what it has to."""


def fields_of(file):
    """The fields in the first lines of a file: pairs of a key and a value."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            return
        if found := FIELD.fullmatch(line):
            yield found[1], found[2].strip()


def read(file):
    """The stages of one file."""
    common, kernels = {}, []
    for key, value in fields_of(file):
        if key == "kernel":
            words = [part.strip().split(": ", 1) for part in f"kernel: {value}".split(";")]
            if any(len(word) != 2 for word in words):
                raise BadStage(f"{file}: the line of kernel {value!r} is no list of `key: value;`")
            kernels.append(dict(words))
        else:
            common[key] = value
    if "proves" not in common or not kernels:
        raise BadStage(f"{file}: it needs a line `# proves: ...` and a line `# kernel: ...`")
    for kernel in kernels:
        fields = common | kernel
        if unknown := set(fields) - KEYS:
            raise BadStage(f"{file}: unknown fields: {', '.join(sorted(unknown))}")
        if fields.get("tier") not in TIERS or not fields.get("minutes", "").isdigit():
            raise BadStage(f"{file}: kernel {fields['kernel']} needs `minutes: N` and "
                           f"`tier: {'|'.join(TIERS)}`")
        arch = fields.get("arch", ARCH)
        words = [] if arch == ARCH else [arch]
        words += [] if fields["kernel"] == "debian" else [fields["kernel"]]
        name = file.name if len(kernels) == 1 else ":".join([*words, file.name])
        yield Stage(name, file, fields["kernel"], arch, int(fields["minutes"]), fields["tier"],
                    fields["proves"], fields.get("script"), int(fields.get("cpus", 1)),
                    fields.get("clock"), fields.get("packages"), fields.get("boot"),
                    fields.get("needs"))


def read_all(directory):
    """All stages, by name."""
    stages = {}
    for file in sorted(pathlib.Path(directory).iterdir()):
        for stage in read(file):
            if stage.name in stages:
                raise BadStage(f"{file}: there are two stages {stage.name}")
            stages[stage.name] = stage
    return stages


def boots(stages):
    """Groups guest stages: those of a group share one boot."""
    groups = collections.defaultdict(list)
    for stage in stages:
        key = (stage.kernel, stage.arch, stage.cpus, stage.clock,
               stage.name if stage.boot == "own" else None)
        last = groups[key]
        if last and sum(other.minutes for other in last[-1]) + stage.minutes <= BOOT_MINUTES:
            last[-1].append(stage)
        else:
            last.append([stage])
    return [group for all_of_a_kind in groups.values() for group in all_of_a_kind]


def jobs(stages, guest):
    """The jobs for these stages, the longest first; `guest` is the program that boots guests."""
    made = []
    for stage in (stage for stage in stages if not stage.script):
        environment = {"STAGE": stage.name, "STAGE_KERNEL": stage.kernel, "STAGE_ARCH": stage.arch,
                       "STAGE_MINUTES": str(stage.minutes)}
        made.append(Job([stage], stage.minutes, [str(stage.file)], environment, needs([stage])))
    for group in boots([stage for stage in stages if stage.script]):
        first, minutes = group[0], sum(stage.minutes for stage in group)
        command = [str(guest), "--arch", first.arch, "--kernel", first.kernel,
                   "--cpus", str(first.cpus), "--minutes", str(minutes)]
        command += ["--icount"] if first.clock == "icount" else []
        for packages in {stage.packages for stage in group} - {None}:
            command += ["--packages", packages]
        command += [stage.script for stage in group]
        made.append(Job(group, minutes, command, {}, needs(group)))
    return sorted(made, key=lambda job: -job.minutes)


def needs(stages):
    """Whether one of these stages needs the test programs."""
    return any(stage.needs != "nothing" for stage in stages)
