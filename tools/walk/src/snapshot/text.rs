// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! The layout of JSON: what fits into a line is one line, and the numbers of an object share lines.
//! A line of memory stays a line.

/// The number of characters of a line, at most, unless one string is longer.
const WIDTH: usize = 100;

/// Lays out JSON without spaces, as `serde_json` writes it. Fields stay in their order.
pub(super) fn laid_out(compact: &str) -> String {
    let mut text = String::new();
    put(compact, 0, 0, &mut text);
    text.push('\n');
    text
}

/// Adds a value to `text`, whose last line has `used` characters and is indented by `depth`.
fn put(value: &str, depth: usize, used: usize, text: &mut String) {
    let (open, close) = match value.as_bytes() {
        [b'{', .., b'}'] => ('{', '}'),
        [b'[', .., b']'] => ('[', ']'),
        _ => {
            text.push_str(value);
            return;
        }
    };
    let items = items(&value[1..value.len() - 1]);
    // The outermost value is never one line.
    let line = one_line(value);
    if items.is_empty() || depth != 0 && used + line.len() <= WIDTH {
        text.push_str(&line);
        return;
    }
    if open == '{' && items.iter().all(|item| is_field(item)) {
        put_fields(&items, depth, text);
        return;
    }
    text.push(open);
    for (index, item) in items.iter().enumerate() {
        text.push_str(if index == 0 { "\n" } else { ",\n" });
        let indent = 2 * (depth + 1);
        text.extend(std::iter::repeat_n(' ', indent));
        let key = match open {
            '{' => key_len(item),
            _ => 0,
        };
        if key != 0 {
            text.push_str(&item[..key]);
            text.push(' ');
        }
        put(&item[key..], depth + 1, indent + key + 1, text);
    }
    text.push('\n');
    text.extend(std::iter::repeat_n(' ', 2 * depth));
    text.push(close);
}

/// Whether an item of an object has a name that is no address, and no parts.
fn is_field(item: &str) -> bool {
    !item.starts_with("\"0x") && !item.ends_with(['}', ']'])
}

/// Adds an object, with as many fields in a line as fit.
fn put_fields(items: &[&str], depth: usize, text: &mut String) {
    let indent = 2 * depth + 1;
    let mut used = indent;
    text.push('{');
    for (index, item) in items.iter().enumerate() {
        let item = one_line(item);
        // With the comma.
        used += item.len() + 2;
        if index != 0 {
            let fits = used <= WIDTH;
            text.push_str(if fits { ", " } else { ",\n" });
            if !fits {
                text.extend(std::iter::repeat_n(' ', indent));
                used = indent + item.len() + 2;
            }
        }
        text.push_str(&item);
    }
    text.push('}');
}

/// Calls `seen` with the offset of each byte that is outside of strings, and the byte.
fn outside_strings(value: &str, mut seen: impl FnMut(usize, u8)) {
    let (mut in_string, mut is_escaped) = (false, false);
    for (at, byte) in value.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            _ if !in_string => seen(at, byte),
            _ => {}
        }
    }
}

/// The items of a list or an object without its brackets.
fn items(inside: &str) -> Vec<&str> {
    let mut commas = Vec::new();
    let mut depth = 0;
    outside_strings(inside, |at, byte| match byte {
        b'[' | b'{' => depth += 1,
        b']' | b'}' => depth -= 1,
        b',' if depth == 0 => commas.push(at),
        _ => {}
    });
    let mut start = 0;
    let mut items = Vec::new();
    for end in commas.into_iter().chain([inside.len()]) {
        if start < end {
            items.push(&inside[start..end]);
        }
        start = end + 1;
    }
    items
}

/// The length of an item's key with the colon.
fn key_len(item: &str) -> usize {
    let mut colon = None;
    outside_strings(item, |at, byte| {
        if byte == b':' {
            colon = colon.or(Some(at));
        }
    });
    colon.map_or(0, |at| at + 1)
}

/// The value with a space after each colon and comma.
fn one_line(value: &str) -> String {
    let mut spaces = Vec::new();
    outside_strings(value, |at, byte| {
        if matches!(byte, b':' | b',') {
            spaces.push(at + 1);
        }
    });
    let mut line = String::new();
    let mut start = 0;
    for space in spaces {
        line.push_str(&value[start..space]);
        line.push(' ');
        start = space;
    }
    line.push_str(&value[start..]);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_share_lines() {
        let name = "x".repeat(60);
        let fields = format!(r#"{{"a":"{name}","b":1,"c":"{name}"}}"#);
        let memory = format!(r#"{{"0x1":"{name}","0x2":"{name}"}}"#);
        let expected = format!(
            "{{\n  \"f\": {{\"a\": \"{name}\", \"b\": 1,\n   \"c\": \"{name}\"}},\n  \"m\": {{\n    \
             \"0x1\": \"{name}\",\n    \"0x2\": \"{name}\"\n  }}\n}}\n"
        );
        assert_eq!(
            laid_out(&format!(r#"{{"f":{fields},"m":{memory}}}"#)),
            expected
        );
    }

    #[test]
    fn what_fits_is_one_line() {
        let long = "x".repeat(100);
        let compact = format!(r#"{{"a":{{"b":1,"c":"d,:]\""}},"e":["{long}","{long}"],"f":[]}}"#);
        let expected = format!(
            "{{\n  \"a\": {{\"b\": 1, \"c\": \"d,:]\\\"\"}},\n  \"e\": [\n    \"{long}\",\n    \"{long}\"\n  ],\n  \
             \"f\": []\n}}\n"
        );
        assert_eq!(laid_out(&compact), expected);
        let parsed: serde_json::Value = serde_json::from_str(&expected).unwrap();
        assert_eq!(
            parsed,
            serde_json::from_str::<serde_json::Value>(&compact).unwrap()
        );
    }
}
