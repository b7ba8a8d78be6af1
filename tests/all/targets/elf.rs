//! As much of ELF as says what an object is, and what it needs.

/// From the System V ABI.
pub const X86_64: u16 = 62;
pub const AARCH64: u16 = 183;
const RELOCATABLE: u16 = 1;
const SYMBOL_TABLE: u32 = 2;
const SYMBOL_BYTES: usize = 24;
const UNDEFINED: u16 = 0;

/// What an object says of itself.
pub struct Object {
    pub machine: u16,
    /// Names of symbols, and whether the object defines them.
    pub symbols: Vec<(String, bool)>,
}

impl Object {
    /// Reads a relocatable object of 64 bits, little-endian.
    pub fn parse(bytes: &[u8]) -> Object {
        assert_eq!(bytes[..6], *b"\x7fELF\x02\x01");
        assert_eq!(half(bytes, 16), RELOCATABLE);
        let (table, entry, count) = (long(bytes, 0x28), half(bytes, 0x3a) as usize, half(bytes, 0x3c) as usize);
        let section = |number: usize| table + number * entry;
        let mut symbols = Vec::new();
        for at in (0..count).map(section).filter(|at| word(bytes, at + 4) == SYMBOL_TABLE) {
            let names = long(bytes, section(word(bytes, at + 40) as usize) + 24);
            let (start, size) = (long(bytes, at + 24), long(bytes, at + 32));
            for symbol in (start..start + size).step_by(SYMBOL_BYTES) {
                let name = names + word(bytes, symbol) as usize;
                let length = bytes[name..].iter().position(|byte| *byte == 0).unwrap();
                let name = String::from_utf8(bytes[name..name + length].to_vec()).unwrap();
                symbols.push((name, half(bytes, symbol + 6) != UNDEFINED));
            }
        }
        symbols.retain(|(name, _)| !name.is_empty());
        Object { machine: half(bytes, 18), symbols }
    }
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}
