#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The results of `steps.sh STEPS runtimes`: which programs are finished, and the table of all.

usage: runtimes.py unfinished DIRECTORY
       runtimes.py keep DIRECTORY NAME STATUS
       runtimes.py table DIRECTORY

DIRECTORY has the file `wanted`: a line `commit TEXT`, a line `steps N`, a line `seed N`, and a line
`program NAME KEY` for each program; KEY is a checksum of all that the result depends on. A result
is NAME.json, the report of `steps`, and NAME.key, which is written when the program was stepped to
its end.

`unfinished` prints the names of the programs without a result for KEY. `keep` judges the report
that `steps` left with an exit status, and writes NAME.key. `table` prints the results of all wanted
programs: the walks that reach the outermost frame, the stacks that are equal to the truth to their
end, and the frames that are equal to the truth, to calls that were seen, and to presumed calls. Its
exit status is 0 only if each program is finished and has no unexplained difference.
"""

import json
import pathlib
import re
import sys

# Places at which walks end that the table shows for each program.
MOST_PLACES = 3


class Wanted:
    """What was asked for."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.commit, self.steps, self.seed, self.keys = "unknown", 0, 0, {}
        for line in (self.directory / "wanted").read_text(encoding="utf-8").splitlines():
            what, _, rest = line.partition(" ")
            if what == "commit":
                self.commit = rest
            elif what in ("steps", "seed"):
                setattr(self, what, int(rest))
            elif what == "program":
                name, _, self.keys[name] = rest.partition(" ")
            else:
                raise ValueError(f"wanted: {line!r}")

    def report(self, name):
        """The report of a program, and None; or None, and the reason why there is none."""
        try:
            text = (self.directory / f"{name}.json").read_text(encoding="utf-8")
            programs = json.loads(text)["programs"]
        except FileNotFoundError:
            return None, "it was not started, or the stepper ended before its end"
        except (ValueError, KeyError):
            return None, "its report cannot be read"
        if len(programs) != 1:
            return None, f"its report has {len(programs)} programs"
        if programs[0]["steps"] < self.steps:
            return None, f"{programs[0]['steps']:,} instructions until the time limit or the end"
        return programs[0], None

    def result(self, name):
        """The report of a finished program, and None; or None, and the reason why it is not
        finished."""
        try:
            key = (self.directory / f"{name}.key").read_text(encoding="ascii").split()
        except FileNotFoundError:
            key = []
        if key[:1] != [self.keys[name]]:
            failure = self.directory / f"{name}.failure"
            if failure.exists():
                return None, failure.read_text(encoding="utf-8").strip()
            return None, "it has not been stepped"
        return self.report(name)

    def commit_of(self, name):
        """The commit at which a finished program was stepped: an older one, if the sources have not
        changed since."""
        key = (self.directory / f"{name}.key").read_text(encoding="ascii")
        return key.partition(" ")[2].strip()

    def unfinished(self):
        """The names of the programs without a result."""
        return [name for name in self.keys if self.result(name)[0] is None]

    def keep(self, name, status):
        """Makes the report of a program its result. Returns why it cannot be one, or None."""
        report, why = self.report(name)
        # 1 is the status for unexplained differences.
        if status not in (0, 1):
            report, why = None, f"status {status}; {why or 'see the log'}"
        elif report and (status == 1) != (report["unexplained"] > 0):
            why = f"status {status}, and {report['unexplained']} unexplained differences"
            report = None
        failure = self.directory / f"{name}.failure"
        if report is None:
            failure.write_text(why + "\n", encoding="utf-8")
            return why
        failure.unlink(missing_ok=True)
        (self.directory / f"{name}.key").write_text(f"{self.keys[name]} {self.commit}\n",
                                                    encoding="ascii")
        return None


def limits(report):
    """The explained steps of a program, by limit, as text."""
    counts = {}
    for kind in report["kinds"]:
        if kind["limit"] is not None:
            counts[kind["limit"]] = counts.get(kind["limit"], 0) + kind["steps"]
    return ", ".join(f"{steps:,} {limit}" for limit, steps in sorted(counts.items()))


def places(report):
    """Where most walks ended early, without addresses: pairs of a number of walks and a text."""
    counts = {}
    for place, walks in report["early_ends"].items():
        place = re.sub(r"(:\.text| at)? 0x[0-9a-f]+( in)?", "", place)
        counts[place] = counts.get(place, 0) + walks
    return sorted(((walks, place) for place, walks in counts.items()),
                  key=lambda it: (-it[0], it[1]))


def share(part, whole):
    """A share in percent, never rounded up to 100."""
    hundredths = 10000 * part // whole if whole else 0
    return f"{hundredths // 100}.{hundredths % 100:02}"


HEAD = ("program", "steps", "threads", "unexpl.", "expl.", "outermost", "judged whole", "frames",
        "by calls", "presumed")


def row(name, report):
    """The cells of a program."""
    presumed = report["presumed"]
    by_calls = report["frames_by_calls"] - presumed + report["frames_in_loaded_by_calls"]
    numbers = (report["frames"], by_calls, presumed)
    shares = (report["ends"].get("outermost", 0), report["complete"])
    return [name, f"{report['steps']:,}", str(report["threads"]), str(report["unexplained"]),
            f"{report['explained']:,}",
            *(share(stacks, report["steps"]) + " %" for stacks in shares),
            *(f"{it:,}" for it in numbers)]


def aligned(rows):
    """Lines with columns of equal width; the first column is on the left, and the others are on the
    right."""
    widths = [max(len(cells[at]) for cells in rows) for at in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) if at else cell.ljust(width)
                      for at, (cell, width) in enumerate(zip(cells, widths))).rstrip()
            for cells in rows]


def table(wanted):
    """The table as text, and whether it shows what it should."""
    found = {name: wanted.result(name) for name in wanted.keys}
    reports = {name: report for name, (report, _) in found.items() if report}
    lines = aligned([HEAD] + [row(name, report) for name, report in reports.items()])
    explained = [(name, limits(report)) for name, report in reports.items() if report["explained"]]
    lines += [""] * bool(explained) + [f"explained, {name}: {text}" for name, text in explained]
    for name, report in reports.items():
        ended = places(report)
        if ended:
            walks = sum(number for number, _ in ended)
            lines += ["", f"{name}: {walks:,} walks ended early:"]
            lines += [f"  {number:9,} {place}" for number, place in ended[:MOST_PLACES]]
            if len(ended) > MOST_PLACES:
                others = sum(number for number, _ in ended[MOST_PLACES:])
                lines.append(f"  {others:9,} at {len(ended) - MOST_PLACES} other places")
    for name, report in reports.items():
        for kind in report["kinds"]:
            if kind["limit"] is None:
                lines += ["", f"UNEXPLAINED, {name}, {kind['steps']} steps:",
                          kind["example"].rstrip()]
    lines.append("")
    failed = [(name, why) for name, (_, why) in found.items() if why]
    lines += [f"NOT FINISHED: {name}: {why}" for name, why in failed]
    steps = sum(report["steps"] for report in reports.values())
    wrong = sum(report["unexplained"] for report in reports.values())
    explained = sum(report["explained"] for report in reports.values())
    commits = ", ".join(sorted({wanted.commit_of(name) for name in reports})) or "none"
    lines.append(f"runtimes: {len(reports)} of {len(found)} programs, {steps} instructions, "
                 f"{wrong} unexplained differences, {explained} explained; "
                 f"seed {wanted.seed}, commit {commits}")
    return lines, not failed and not wrong and bool(found)


def main(arguments):
    """Runs a command. Returns the exit status."""
    what, directory, *rest = arguments
    wanted = Wanted(directory)
    if what == "unfinished":
        print("\n".join(wanted.unfinished()))
        return 0
    if what == "keep":
        name, status = rest
        why = wanted.keep(name, int(status))
        if why:
            print(f"NOT FINISHED: {name}: {why}")
        return int(why is not None)
    if what == "table":
        lines, is_good = table(wanted)
        print("\n".join(lines))
        return int(not is_good)
    raise ValueError(what)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        sys.exit(f"runtimes.py: {error}")
