//! Names of functions by their addresses, from the symbol tables of the binary and its libraries.
//! Functions that were inlined count for the one that they are in.

use object::{Object, ObjectSegment, ObjectSymbol, ReadCache, SymbolKind};
use std::{
    collections::HashMap,
    fs::{self, File},
    ops::Range,
    rc::Rc,
};
use symbolic_demangle::demangle;

/// A piece of this process's memory that is the code of a file.
struct Mapping {
    addresses: Range<u64>,
    /// Position of the first byte in the file.
    offset: u64,
    path: String,
}

/// Symbols of the code that this process has mapped. Files are read when one of their addresses is
/// first asked for.
pub struct Symbols {
    mappings: Vec<Mapping>,
    files: HashMap<String, Functions>,
    names: HashMap<u64, Rc<str>>,
}

impl Symbols {
    /// Creates the symbols of this process, as `/proc/self/maps` describes it now.
    pub fn of_this_process() -> Self {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mappings = maps.lines().filter_map(parse_mapping).collect();
        Self { mappings, files: HashMap::new(), names: HashMap::new() }
    }

    /// Returns the name of the function at an address, or that of the file in brackets.
    pub fn name(&mut self, address: u64) -> Rc<str> {
        if let Some(name) = self.names.get(&address) {
            return name.clone();
        }
        let name: Rc<str> = self.find(address).into();
        self.names.insert(address, name.clone());
        name
    }

    fn find(&mut self, address: u64) -> String {
        let mapping = self.mappings.iter().find(|mapping| mapping.addresses.contains(&address));
        let Some(Mapping { addresses, offset, path }) = mapping else {
            return "[unknown]".to_owned();
        };
        let file = self.files.entry(path.clone()).or_insert_with(|| Functions::read(path));
        match file.name(address - addresses.start + offset) {
            Some(name) => demangle(name).into_owned(),
            None => {
                format!("[{}]", path.rsplit('/').next().unwrap_or(path).trim_matches(['[', ']']))
            }
        }
    }
}

/// Parses a line of `/proc/self/maps`: `start-end rwxp offset device inode path`. Memory that is no
/// code is left out.
fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    if !words.next()?.contains('x') {
        return None;
    }
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let offset = hex(words.next()?)?;
    let path = words.nth(2)?.to_owned();
    Some(Mapping { addresses: hex(start)?..hex(end)?, offset, path })
}

/// Functions of one file, ordered by address.
#[derive(Default)]
struct Functions {
    /// Parts of the file, and the address at which each is linked.
    segments: Vec<(Range<u64>, u64)>,
    functions: Vec<(Range<u64>, String)>,
}

impl Functions {
    /// Reads the symbols of a file. A file that cannot be read has none.
    fn read(path: &str) -> Self {
        let Ok(file) = File::open(path) else { return Self::default() };
        let cache = ReadCache::new(file);
        let Ok(object) = object::File::parse(&cache) else { return Self::default() };
        let mut segments = Vec::new();
        for segment in object.segments() {
            let (offset, len) = segment.file_range();
            segments.push((offset..offset + len, segment.address()));
        }
        let mut functions = Vec::new();
        for symbol in object.symbols().chain(object.dynamic_symbols()) {
            if let (SymbolKind::Text, Ok(name)) = (symbol.kind(), symbol.name()) {
                let (start, len) = (symbol.address(), symbol.size().max(1));
                functions.push((start..start.saturating_add(len), name.to_owned()));
            }
        }
        functions.sort_by_key(|(range, _)| range.start);
        functions.dedup_by(|later, earlier| later.0.start == earlier.0.start);
        Self { segments, functions }
    }

    /// Returns the mangled name of the function at a position in the file.
    fn name(&self, position: u64) -> Option<&str> {
        let segment = self.segments.iter().find(|(range, _)| range.contains(&position));
        let address = segment.map(|(range, address)| position - range.start + address)?;
        let after = self.functions.partition_point(|(range, _)| range.start <= address);
        let (range, name) = &self.functions[after.checked_sub(1)?];
        range.contains(&address).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    extern "C" fn a_function_to_look_for() {}

    #[test]
    fn functions_of_the_binary_and_of_the_c_library_have_names() {
        let mut symbols = Symbols::of_this_process();
        let name = symbols.name(a_function_to_look_for as *const () as u64);
        assert!(name.ends_with("a_function_to_look_for"), "{name}");
        let name = symbols.name(nix::libc::getpid as *const () as u64);
        assert!(name.contains("getpid"), "{name}");
        assert_eq!(&*symbols.name(1), "[unknown]");
    }

    #[test]
    fn mappings_are_those_of_code() {
        let parse = |line| parse_mapping(line).map(|it| (it.addresses, it.offset, it.path));
        let line = "7f00-7fff r-xp 00001000 fe:00 123                /usr/lib/libc.so.6";
        assert_eq!(parse(line), Some((0x7f00..0x7fff, 0x1000, "/usr/lib/libc.so.6".to_owned())));
        for other in
            ["", "7f00-7fff rw-p 0 0:0 0 /a", "7f00-7fff r-xp 0 0:0 0", "x-y r-xp 0 0 0 /a"]
        {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
