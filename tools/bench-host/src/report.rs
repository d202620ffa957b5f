// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The results, as tables and as a picture.

use std::{
    fmt::Write,
    fs,
    path::Path, //
};

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

const BEGIN: &str = ".. What follows is written by make bench-host.\n";
const END: &str = ".. That was written by make bench-host.\n";

/// Two tables of reStructuredText.
pub(crate) fn tables(lines: &[Line], curves: &[Curve]) -> String {
    let mut out = String::from(
        ".. list-table::\n   :header-rows: 1\n\n   * - Reader\n     - Instructions\n     - ns\n",
    );
    for line in lines {
        let Line {
            name,
            instructions,
            nanoseconds,
        } = line;
        let _ = write!(
            out,
            "   * - {name}\n     - {instructions:.1}\n     - {nanoseconds:.0}\n"
        );
    }
    out.push_str("\n.. list-table::\n   :header-rows: 1\n\n   * - Instructions, of functions\n");
    for (functions, _) in curves.iter().flat_map(|curve| &curve.points).take(4) {
        let _ = writeln!(out, "     - {functions}");
    }
    for curve in curves {
        let _ = writeln!(out, "   * - {}", curve.name);
        for (_, cost) in &curve.points {
            let _ = writeln!(out, "     - {cost:.1}");
        }
    }
    out
}

/// Replaces the text between the marks of a document by `text`.
pub(crate) fn replace(document: &Path, text: &str) {
    let name = document.display();
    let old = fs::read_to_string(document).unwrap_or_else(|error| panic!("{name}: {error}"));
    let new = replaced(&old, text)
        .unwrap_or_else(|| panic!("{name}: there have to be the lines {BEGIN:?} and {END:?}"));
    fs::write(document, new).unwrap_or_else(|error| panic!("{name}: {error}"));
}

fn replaced(old: &str, text: &str) -> Option<String> {
    let (before, rest) = old.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{text}\n{END}{after}"))
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
    fn tables_go_between_the_marks() {
        let old = format!("head\n{BEGIN}old\n{END}tail\n");
        let new = format!("head\n{BEGIN}\nnew\n\n{END}tail\n");
        assert_eq!(replaced(&old, "new\n"), Some(new));
        assert_eq!(replaced("head\n", "new\n"), None);
    }
}
