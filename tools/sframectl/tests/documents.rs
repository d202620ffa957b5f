// SPDX-License-Identifier: GPL-2.0-only

//! Documents that are written from lists in the code: each must agree with its list.
//!
//! `UPDATE_DOCUMENTS=1 cargo test -p sframectl --test documents` writes them anew.

use std::{
    env,
    fs,
    path::Path, //
};

use sframe::stop_reason::StopReason;

/// A cell of a table, in lines of at most 100 columns.
fn cell(text: &str) -> String {
    let mut cell = String::from("     -");
    let mut column = cell.len();
    for word in text.split(' ') {
        if column + 1 + word.len() > 100 {
            cell.push_str("\n      ");
            column = 6;
        }
        cell.push(' ');
        cell.push_str(word);
        column += 1 + word.len();
    }
    cell.push('\n');
    cell
}

/// The table of stop reasons, in reStructuredText.
fn stop_reasons() -> String {
    let mut text = String::from(
        ".. SPDX-License-Identifier: GPL-2.0-only\n\
         .. Written by tools/sframectl/tests/documents.rs from rust/sframe/src.\n\n\
         .. list-table::\n   :header-rows: 1\n   :widths: 24 38 38\n\n\
         \x20  * - Counter\n     - Meaning\n     - Advice\n",
    );
    for reason in StopReason::ALL {
        let (first, rest) = reason.meaning().split_at(1);
        let meaning = format!("{}{rest}.", first.to_uppercase());
        let advice = match reason.advice() {
            "" => "Nothing.",
            advice => advice,
        };
        // A word of the command line is a literal.
        let advice = advice.replace('`', "``");
        text.push_str(&format!("   * - ``stop_{reason}``\n"));
        text.push_str(&cell(&meaning));
        text.push_str(&cell(&advice));
    }
    text
}

#[test]
fn stop_reasons_are_documented_as_the_core_lists_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Documentation/stop-reasons.rst");
    let expected = stop_reasons();
    if env::var_os("UPDATE_DOCUMENTS").is_some() {
        fs::write(&path, &expected).expect("the document can be written");
    }
    let found = fs::read_to_string(&path).expect("the document can be read");
    assert_eq!(
        found, expected,
        "write it anew: UPDATE_DOCUMENTS=1 cargo test -p sframectl --test documents"
    );
}
