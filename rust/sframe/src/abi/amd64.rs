// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! AMD64: the call pushes the return address, so it is always right below the CFA.

use super::super::{
    error::Malformed,
    fre::Words,
    header::Header,
    rule::{
        Cfa,
        Location,
        Rule, //
    }, //
};

/// Word 0 is the offset of the CFA; word 1, if there is one, that of the saved frame pointer. A row
/// without words marks the outermost frame.
#[inline]
pub(super) fn rule(header: &Header, words: &Words) -> Result<Rule, Malformed> {
    let count = words.count();
    if count == 0 {
        return Ok(Rule::OUTERMOST);
    }
    if words.is_mangled() {
        return Err(Malformed::Mangled);
    }
    let fp = match (count, header.fixed_fp) {
        (1, 0) => Location::Unchanged,
        (2, 0) => Location::AtCfa(words.second()),
        (1, fixed) => Location::AtCfa(i32::from(fixed)),
        _ => return Err(Malformed::WordCount),
    };
    Ok(Rule {
        cfa: Cfa {
            base: words.base(),
            offset: words.first(),
        },
        ra: Location::AtCfa(i32::from(header.fixed_ra)),
        fp,
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::{
        error::Error,
        rule::Base,
        section::{
            Search,
            Section, //
        }, //
    };
    use super::*;
    use std::vec::Vec;

    /// What a single row says, of which `row` is all but the start.
    fn decode(fixed: [u8; 2], row: &[u8]) -> Result<Rule, Malformed> {
        let mut bytes: Vec<u8> = Vec::from([0xe2, 0xde, 2, 1, 3, fixed[0], fixed[1], 0]);
        let len = row.len() as u8 + 1;
        bytes.extend([
            1, 0, 0, 0, 1, 0, 0, 0, len, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0,
        ]);
        bytes.extend([0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        bytes.push(0);
        bytes.extend(row);
        let bytes = bytes.as_slice();
        let section = Section::open(bytes, 0, bytes.len() as u64).unwrap();
        match section.find(bytes, 0, Search::Bounded) {
            Ok(rule) => Ok(rule.unwrap()),
            Err(Error::Malformed { what, offset: 48 }) => Err(what),
            other => panic!("{other:?}"),
        }
    }

    fn rule(base: Base, offset: i32, fp: Location) -> Result<Rule, Malformed> {
        Ok(Rule {
            cfa: Cfa { base, offset },
            ra: Location::AtCfa(-8),
            fp,
        })
    }

    #[test]
    fn one_word_is_the_cfa() {
        let plain = [0, 0xf8];
        let unchanged = Location::Unchanged;
        assert_eq!(decode(plain, &[0x03, 8]), rule(Base::Sp, 8, unchanged));
        assert_eq!(decode(plain, &[0x02, 16]), rule(Base::Fp, 16, unchanged));
        assert_eq!(decode(plain, &[0x02, 0xf0]), rule(Base::Fp, -16, unchanged));
    }

    #[test]
    fn the_second_is_the_frame_pointer() {
        assert_eq!(
            decode([0, 0xf8], &[0x05, 16, 0xf0]),
            rule(Base::Sp, 16, Location::AtCfa(-16))
        );
    }

    #[test]
    fn fixed_offsets_take_the_place_of_words() {
        assert_eq!(
            decode([0xf0, 0xf8], &[0x03, 16]),
            rule(Base::Sp, 16, Location::AtCfa(-16))
        );
        assert_eq!(
            decode([0xf0, 0xf8], &[0x05, 16, 0xf0]),
            Err(Malformed::WordCount)
        );
    }

    #[test]
    fn no_word_is_the_end() {
        assert_eq!(decode([0, 0xf8], &[0x00]), Ok(Rule::OUTERMOST));
        assert_eq!(decode([0xf0, 0xf8], &[0x00]), Ok(Rule::OUTERMOST));
        // All other bits are without meaning then.
        assert_eq!(decode([0, 0xf8], &[0x81]), Ok(Rule::OUTERMOST));
    }

    #[test]
    fn return_addresses_are_not_mangled() {
        assert_eq!(decode([0, 0xf8], &[0x83, 8]), Err(Malformed::Mangled));
    }
}
