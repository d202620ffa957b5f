// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The results, as rows and as a picture.

use std::fmt::Write;

/// The cost of one lookup by one reader.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) instructions: f64,
    pub(crate) nanoseconds: f64,
}

/// The instructions of a lookup over the number of functions.
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(u32, f64)>,
}

/// The rows of `Documentation/results/lookups.csv`, which scripts/results.py explains. Lines are of
/// one file, and points of a curve are of generated sections.
pub(crate) fn csv(lines: &[Line], curves: &[Curve], commit: &str) -> String {
    let mut out = String::from(concat!(
        "# SPDX-License-Identifier: GPL-2.0-only\n",
        "# make bench-host\n",
        "reader,file,commit,instructions,ns\n",
    ));
    for line in lines {
        let Line {
            name,
            instructions,
            nanoseconds,
        } = line;
        let _ = writeln!(
            out,
            "\"{name}\",libsqlite3.so,{commit},{instructions:.1},{nanoseconds:.0}"
        );
    }
    for Curve { name, points } in curves {
        for (functions, cost) in points {
            let _ = writeln!(out, "\"{name}\",{functions} functions,{commit},{cost:.1},");
        }
    }
    out
}

/// The curves, over the number of functions in powers of ten.
pub(crate) fn svg(curves: &[Curve]) -> String {
    const COLOURS: [&str; 4] = ["#0a7", "#05c", "#d60", "#a2a"];
    const LEFT: f64 = 60.0;
    const BOTTOM: f64 = 330.0;
    const WIDTH: f64 = 440.0;
    const HEIGHT: f64 = 300.0;
    let most = curves
        .iter()
        .flat_map(|curve| &curve.points)
        .fold(1.0, |most, point| f64::max(most, point.1));
    // The top of the scale: a multiple of 500, so that five marks are multiples of 100.
    let top = (most / 500.0).ceil() * 500.0;
    let x = |functions: u32| LEFT + WIDTH * (f64::from(functions).log10() - 2.0) / 3.0;
    let y = |cost: f64| BOTTOM - HEIGHT * cost / top;

    let mut out = String::from(concat!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 390\" ",
        "font-family=\"sans-serif\" font-size=\"13\">\n",
        "<!-- SPDX-License-Identifier: GPL-2.0-only -->\n",
        "<rect width=\"720\" height=\"390\" fill=\"#fff\"/>\n",
    ));
    for step in 0..=5 {
        let cost = top * f64::from(step) / 5.0;
        let (at, end) = (y(cost), LEFT + WIDTH);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at:.1}H{end}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{cost:.0}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for functions in [100, 1_000, 10_000, 100_000] {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"350\" text-anchor=\"middle\">{functions}</text>",
            x(functions)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"375\" text-anchor=\"middle\">functions in the section</text>\n\
         <text x=\"6\" y=\"18\">instructions per lookup</text>",
        LEFT + WIDTH / 2.0
    );
    for (index, (curve, colour)) in curves.iter().zip(COLOURS).enumerate() {
        let points: Vec<String> = curve
            .points
            .iter()
            .map(|&(functions, cost)| format!("{:.1},{:.1}", x(functions), y(cost)))
            .collect();
        let at = 50 + 22 * index;
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <path d=\"M515 {at}h24\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"545\" y=\"{}\">{}</text>",
            points.join(" "),
            at + 4,
            curve.name
        );
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_of_a_reader_and_a_file() {
        let line = Line {
            name: "a, b",
            instructions: 1.25,
            nanoseconds: 2.0,
        };
        let curve = Curve {
            name: "c",
            points: vec![(100, 3.0)],
        };
        let rows = csv(&[line], &[curve], "0c389db");
        let rows: Vec<_> = rows.lines().skip(3).collect();
        assert_eq!(
            rows,
            [
                "\"a, b\",libsqlite3.so,0c389db,1.2,2",
                "\"c\",100 functions,0c389db,3.0,"
            ]
        );
    }
}
