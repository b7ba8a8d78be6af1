//! Places a relocatable ELF object into executable memory of this process.
//!
//! Objects of ours hold code and constants, no writable data, and refer to at most one outer symbol: the
//! runtime's `tilescribe_parallel_for`. The image is one mapping: sections, then a table of addresses and a
//! jump for each outer symbol. Pages are never writable and executable at the same time.

use std::collections::HashMap;

use crate::codegen::abi::PARALLEL_FOR;
use crate::codegen::error::CodegenError;
use crate::codegen::pool;
use crate::target::{Architecture, Cpu};

type Result<T> = std::result::Result<T, CodegenError>;

/// Code and constants, mapped as long as this lives.
pub struct Image {
    base: *mut u8,
    bytes: usize,
    symbols: HashMap<String, usize>,
}

// SAFETY: the mapping is read-only and belongs to the image
unsafe impl Send for Image {}
// SAFETY: as above
unsafe impl Sync for Image {}

impl Image {
    /// # Errors
    /// [`CodegenError::Environment`] for code of another architecture or where the system gives no memory,
    /// [`CodegenError::Internal`] for an object with something in it that ours do not have.
    pub fn load(object: &[u8], target: &Cpu) -> Result<Image> {
        if target.architecture != Architecture::X86_64 || !cfg!(target_arch = "x86_64") {
            return Err(CodegenError::Environment(
                "kernels can be loaded into a process only on x86-64, and only those of that architecture".into(),
            ));
        }
        let elf = Elf { bytes: object };
        let sections = elf.sections()?;
        let mut places = vec![None; sections.len()];
        let mut end = 0;
        for (number, section) in sections.iter().enumerate() {
            if section.flags & SHF_ALLOC == 0 || section.size == 0 {
                continue;
            }
            end = align(end, section.alignment.max(1));
            places[number] = Some(end);
            end += section.size;
        }
        let stubs = align(end, STUB_BYTES);
        let symbols = elf.symbols(&sections)?;
        // a stub, and an address for references through a table, for each symbol
        let bytes = stubs + symbols.len() * (STUB_BYTES + 8);
        let image = Image::map(bytes)?;
        for (section, place) in sections.iter().zip(&places) {
            if let (Some(place), true) = (place, section.kind == SHT_PROGBITS) {
                image.write(*place, elf.slice(section.offset, section.size)?);
            }
        }
        let addresses = image.resolve(&symbols, &places, stubs)?;
        for section in sections.iter().filter(|s| s.kind == SHT_RELA) {
            let Some(Some(place)) = places.get(section.info) else { continue };
            for at in (0..section.size).step_by(RELA_BYTES) {
                let entry = section.offset + at;
                let (offset, info, addend) = (elf.u64(entry)?, elf.u64(entry + 8)?, elf.u64(entry + 16)? as i64);
                let symbol = (info >> 32) as usize;
                let address = addresses.get(symbol).ok_or_else(|| internal("a relocation without symbol"))?;
                let field = place + usize::try_from(offset).map_err(|_| internal("a relocation out of place"))?;
                image.relocate(field, info as u32, address, addend)?;
            }
        }
        image.finish(symbols.iter().zip(&addresses))
    }

    /// The address of a symbol that the object defines.
    pub fn address(&self, symbol: &str) -> Option<*const u8> {
        // SAFETY: symbols lie inside of the mapping
        self.symbols.get(symbol).map(|offset| unsafe { self.base.add(*offset) }.cast_const())
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn map(bytes: usize) -> Result<Image> {
        let bytes = align(bytes.max(1), PAGE_BYTES);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            return Err(CodegenError::Environment(format!("no memory for {bytes} bytes of code: {error}")));
        }
        Ok(Image { base: base.cast(), bytes, symbols: HashMap::new() })
    }

    fn write(&self, at: usize, data: &[u8]) {
        assert!(at.checked_add(data.len()).is_some_and(|end| end <= self.bytes), "a write beyond the image");
        // SAFETY: inside of the mapping, which is still writable and not shared yet
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.base.add(at), data.len()) }
    }

    /// Where each symbol is: the image's own offsets, or a stub that jumps to the runtime.
    fn resolve(&self, symbols: &[Symbol], places: &[Option<usize>], stubs: usize) -> Result<Vec<Resolved>> {
        let table = stubs + symbols.len() * STUB_BYTES;
        let mut resolved = Vec::new();
        for (number, symbol) in symbols.iter().enumerate() {
            let entry = table + number * 8;
            let place = places.get(symbol.section).copied().flatten();
            let offset = match place {
                Some(place) => place + symbol.value,
                None if symbol.section == SHN_UNDEF && symbol.name == PARALLEL_FOR => {
                    let stub = stubs + number * STUB_BYTES;
                    self.write(stub, &jump_to(pool::parallel_for_address() as u64));
                    stub
                }
                None if symbol.section == SHN_UNDEF && !symbol.name.is_empty() => {
                    return Err(internal(&format!("the code needs `{}`", symbol.name)));
                }
                // names of files, and the empty first symbol
                None => 0,
            };
            self.write(entry, &(self.base as u64 + offset as u64).to_le_bytes());
            resolved.push(Resolved { offset, table_entry: entry, defined: place.is_some() });
        }
        Ok(resolved)
    }

    fn relocate(&self, field: usize, kind: u32, symbol: &Resolved, addend: i64) -> Result<()> {
        let here = self.base as i64 + field as i64;
        let value = self.base as i64 + symbol.offset as i64 + addend;
        let entry = self.base as i64 + symbol.table_entry as i64 + addend;
        let relative = |value: i64| {
            i32::try_from(value - here).map_err(|_| internal("a relocation that does not reach")).map(i32::to_le_bytes)
        };
        match kind {
            R_X86_64_64 => self.write(field, &value.to_le_bytes()),
            R_X86_64_PC64 => self.write(field, &(value - here).to_le_bytes()),
            R_X86_64_PC32 | R_X86_64_PLT32 => self.write(field, &relative(value)?),
            R_X86_64_GOTPCREL | R_X86_64_GOTPCRELX | R_X86_64_REX_GOTPCRELX => self.write(field, &relative(entry)?),
            other => return Err(internal(&format!("a relocation of type {other}"))),
        }
        Ok(())
    }

    fn finish<'s>(mut self, symbols: impl Iterator<Item = (&'s Symbol, &'s Resolved)>) -> Result<Image> {
        self.symbols = symbols.filter(|(_, r)| r.defined).map(|(s, r)| (s.name.clone(), r.offset)).collect();
        // SAFETY: our own mapping
        if unsafe { libc::mprotect(self.base.cast(), self.bytes, libc::PROT_READ | libc::PROT_EXEC) } != 0 {
            let error = std::io::Error::last_os_error();
            return Err(CodegenError::Environment(format!("this system does not let code be executed: {error}")));
        }
        Ok(self)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody refers to any more
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

struct Resolved {
    /// In the image.
    offset: usize,
    table_entry: usize,
    defined: bool,
}

/// `jmp *[rip]`, and the address behind it.
fn jump_to(address: u64) -> [u8; STUB_BYTES] {
    let mut stub = [0xcc; STUB_BYTES];
    stub[..6].copy_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
    stub[6..14].copy_from_slice(&address.to_le_bytes());
    stub
}

const STUB_BYTES: usize = 16;
const PAGE_BYTES: usize = 4096;

// from the System V ABI, generic and AMD64 parts
const SHF_ALLOC: u64 = 2;
const SHT_PROGBITS: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHN_UNDEF: usize = 0;
const RELA_BYTES: usize = 24;
const SYMBOL_BYTES: usize = 24;
const R_X86_64_64: u32 = 1;
const R_X86_64_PC32: u32 = 2;
const R_X86_64_PLT32: u32 = 4;
const R_X86_64_GOTPCREL: u32 = 9;
const R_X86_64_PC64: u32 = 24;
const R_X86_64_GOTPCRELX: u32 = 41;
const R_X86_64_REX_GOTPCRELX: u32 = 42;

struct Section {
    kind: u32,
    flags: u64,
    offset: usize,
    size: usize,
    link: usize,
    info: usize,
    alignment: usize,
}

struct Symbol {
    name: String,
    section: usize,
    value: usize,
}

/// A 64-bit little-endian ELF file.
struct Elf<'a> {
    bytes: &'a [u8],
}

impl Elf<'_> {
    fn sections(&self) -> Result<Vec<Section>> {
        if self.slice(0, 4)? != b"\x7fELF" {
            return Err(internal("not an ELF object"));
        }
        let (table, entry_bytes) = (self.word(0x28)?, usize::from(self.u16(0x3a)?));
        let count = usize::from(self.u16(0x3c)?);
        (0..count)
            .map(|number| {
                let at = table + number * entry_bytes;
                Ok(Section {
                    kind: self.u32(at + 4)?,
                    flags: self.u64(at + 8)?,
                    offset: self.word(at + 24)?,
                    size: self.word(at + 32)?,
                    link: self.u32(at + 40)? as usize,
                    info: self.u32(at + 44)? as usize,
                    alignment: self.word(at + 48)?,
                })
            })
            .collect()
    }

    fn symbols(&self, sections: &[Section]) -> Result<Vec<Symbol>> {
        let Some(table) = sections.iter().find(|s| s.kind == SHT_SYMTAB) else { return Ok(Vec::new()) };
        let names = sections.get(table.link).ok_or_else(|| internal("symbols without names"))?;
        (0..table.size / SYMBOL_BYTES)
            .map(|number| {
                let at = table.offset + number * SYMBOL_BYTES;
                let start = names.offset + self.u32(at)? as usize;
                let tail = self.bytes.get(start..).ok_or_else(|| internal("a name out of place"))?;
                let length = tail.iter().position(|b| *b == 0).unwrap_or(tail.len());
                let name = String::from_utf8_lossy(&tail[..length]).into_owned();
                Ok(Symbol { name, section: usize::from(self.u16(at + 6)?), value: self.word(at + 8)? })
            })
            .collect()
    }

    fn slice(&self, at: usize, length: usize) -> Result<&[u8]> {
        let end = at.checked_add(length).ok_or_else(|| internal("an object cut short"))?;
        self.bytes.get(at..end).ok_or_else(|| internal("an object cut short"))
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.slice(at, N)?);
        Ok(bytes)
    }

    fn u16(&self, at: usize) -> Result<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Result<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> Result<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    fn word(&self, at: usize) -> Result<usize> {
        usize::try_from(self.u64(at)?).map_err(|_| internal("an offset beyond the address space"))
    }
}

fn align(value: usize, alignment: usize) -> usize {
    value.next_multiple_of(alignment.max(1))
}

fn internal(what: &str) -> CodegenError {
    CodegenError::Internal(format!("loading an object: {what}"))
}
