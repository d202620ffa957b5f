// SPDX-License-Identifier: GPL-2.0-only OR MIT

//! Files: their sections, relocated and placed at addresses.

use std::{
    fs,
    path::Path, //
};

use object::{
    elf,
    Architecture,
    Object,
    ObjectKind,
    ObjectSection,
    ObjectSymbol,
    RelocationFlags,
    RelocationTarget,
    SectionIndex,
    SectionKind, //
};

/// The distance between the sections of an object file, in bytes.
pub(crate) const APART: u64 = 0x100_0000;

/// Bytes at an address.
pub(crate) struct ImagePart {
    pub(crate) name: String,
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

impl ImagePart {
    pub(crate) fn covers(&self, address: u64) -> bool {
        address.wrapping_sub(self.address) < self.bytes.len() as u64
    }
}

/// A file.
pub(crate) struct Image {
    pub(crate) architecture: Architecture,
    pub(crate) little: bool,
    /// Whether this is an object file, whose sections were assigned addresses here.
    pub(crate) relocatable: bool,
    pub(crate) sframe: ImagePart,
    pub(crate) eh_frame: Option<ImagePart>,
    pub(crate) code: Vec<ImagePart>,
    /// The addresses of crtbegin.o's functions. gcc links that file into each program and library.
    crt: Vec<u64>,
}

/// The functions of crtbegin.o.
const CRT: [&str; 4] = [
    "deregister_tm_clones",
    "register_tm_clones",
    "__do_global_dtors_aux",
    "frame_dummy",
];

impl Image {
    /// Loads a file. Returns `None` if the file has no SFrame section or an empty one.
    pub(crate) fn load(path: &Path) -> Option<Image> {
        let data = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file = object::File::parse(&*data)
            .unwrap_or_else(|error| panic!("{}: not a readable ELF file: {error}", path.display()));
        let relocatable = file.kind() == ObjectKind::Relocatable;
        let place_at = |index: SectionIndex, address: u64| {
            if relocatable {
                index.0 as u64 * APART + address
            } else {
                address
            }
        };

        let part = |name: &str| {
            let section = file.section_by_name(name)?;
            let address = place_at(section.index(), section.address());
            let mut bytes = section.data().expect("cannot read a section").to_vec();
            for (at, relocation) in section.relocations() {
                let RelocationFlags::Elf { r_type } = relocation.flags() else {
                    panic!("{}: {name}: {relocation:?}", path.display());
                };
                let size = match (file.architecture(), r_type) {
                    // `ld -r` leaves relocations of type 0 for a CIE that it has removed.
                    (_, 0) => continue,
                    (Architecture::X86_64, elf::R_X86_64_PC32)
                    | (Architecture::Aarch64, elf::R_AARCH64_PREL32)
                    | (Architecture::S390x, elf::R_390_PC32) => 4,
                    (Architecture::X86_64, elf::R_X86_64_PC64)
                    | (Architecture::Aarch64, elf::R_AARCH64_PREL64)
                    | (Architecture::S390x, elf::R_390_PC64) => 8,
                    _ => panic!("{}: {name}: {relocation:?}", path.display()),
                };
                let RelocationTarget::Symbol(symbol) = relocation.target() else {
                    panic!("{}: {name}: {relocation:?}", path.display());
                };
                let symbol = file.symbol_by_index(symbol).expect("no symbol");
                let target = place_at(symbol.section_index()?, symbol.address())
                    .wrapping_add_signed(relocation.addend());
                let value = target.wrapping_sub(address + at);
                let field = &mut bytes[at as usize..][..size];
                if file.is_little_endian() {
                    field.copy_from_slice(&value.to_le_bytes()[..size]);
                } else {
                    field.copy_from_slice(&value.to_be_bytes()[8 - size..]);
                }
            }
            Some(ImagePart {
                name: name.into(),
                address,
                bytes,
            })
        };

        let code = file
            .sections()
            .filter(|section| section.kind() == SectionKind::Text)
            .map(|section| ImagePart {
                name: section.name().unwrap_or_default().into(),
                address: place_at(section.index(), section.address()),
                bytes: section.data().expect("cannot read a section").to_vec(),
            })
            .collect();
        Some(Image {
            architecture: file.architecture(),
            little: file.is_little_endian(),
            relocatable,
            sframe: part(".sframe").filter(|sframe| !sframe.bytes.is_empty())?,
            eh_frame: part(".eh_frame"),
            code,
            crt: file
                .symbols()
                .filter(|symbol| symbol.name().is_ok_and(|name| CRT.contains(&name)))
                .map(|symbol| symbol.address())
                .collect(),
        })
    }

    /// Whether a function is one of crtbegin.o.
    pub(crate) fn is_of_crt(&self, function: u64) -> bool {
        self.crt.contains(&function)
    }

    /// The section of code that an address lies in.
    pub(crate) fn code_at(&self, address: u64) -> Option<&ImagePart> {
        self.code.iter().find(|part| part.covers(address))
    }

    /// Up to `most` bytes at an address.
    pub(crate) fn bytes_at(&self, address: u64, most: usize) -> &[u8] {
        let Some(part) = self.code_at(address) else {
            return &[];
        };
        let bytes = &part.bytes[(address - part.address) as usize..];
        &bytes[..bytes.len().min(most)]
    }
}
