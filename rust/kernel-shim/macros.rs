// SPDX-License-Identifier: GPL-2.0-only

//! The attributes of the `kernel` crate that have to be procedural macros. This crate runs in the
//! compiler.

extern crate proc_macro;

use proc_macro::{
    Delimiter,
    Group,
    TokenStream,
    TokenTree, //
};

/// The structure without `#[pin]` at its fields: the shim's initialisers move their values.
#[proc_macro_attribute]
pub fn pin_data(_: TokenStream, structure: TokenStream) -> TokenStream {
    without_pin(structure)
}

fn without_pin(tokens: TokenStream) -> TokenStream {
    let mut kept = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(ref mark) if mark.as_char() == '#' => {
                if matches!(tokens.peek(), Some(TokenTree::Group(group)) if group.stream().to_string() == "pin")
                {
                    tokens.next();
                } else {
                    kept.push(token);
                }
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                kept.push(Group::new(Delimiter::Brace, without_pin(group.stream())).into());
            }
            _ => kept.push(token),
        }
    }
    kept.into_iter().collect()
}

/// Drops the item: KUnit runs only in the build with the kernel's own crate.
#[proc_macro_attribute]
pub fn kunit_tests(_: TokenStream, _: TokenStream) -> TokenStream {
    TokenStream::new()
}
