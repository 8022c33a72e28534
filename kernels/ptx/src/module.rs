//! A module of entries, and its text.

use super::{
    Feature, Generic, Global, Ptr, Shared, Sm, Version,
    types::{CLASSES, DECLARATIONS, Reg, Type, U64},
};
use std::{
    cell::{Cell, RefCell},
    fmt::Write as _,
    panic::Location,
};

/// A module, the unit that the driver loads. Kernels are its entries.
#[derive(Debug)]
pub struct Module {
    sm: Sm,
    features: &'static [Feature],
    version: Version,
    entries: Vec<Entry>,
    /// Alignment of the dynamic shared memory, where an entry uses it.
    dynamic_shared: Option<u32>,
}

/// Registers with a name of their own.
#[derive(Debug)]
struct Named {
    name: &'static str,
    declared: &'static str,
    count: u32,
}

/// A static array in shared memory.
#[derive(Debug)]
struct SharedArray {
    name: String,
    bytes: u32,
    align: u32,
}

/// The name of the dynamic shared memory in the text.
const DYNAMIC_SHARED: &str = "dynamic_shared";

/// A declared parameter.
#[derive(Debug)]
struct Declared {
    name: String,
    /// `.u32 n`, or `.align 64 .b8 map[128]`.
    text: String,
}

/// One line of a body.
#[derive(Debug)]
enum Line {
    Comment(String),
    Label(String),
    Instruction { text: String, at: &'static Location<'static> },
}

impl Module {
    /// An empty module for `sm`.
    pub fn new(sm: Sm) -> Self {
        Self { sm, features: sm.features(), version: sm.version(), entries: Vec::new(), dynamic_shared: None }
    }

    /// An empty module for an architecture that is like `sm` but for its features.
    #[cfg(test)]
    pub(super) fn with_features(sm: Sm, features: &'static [Feature]) -> Self {
        Self { features, ..Self::new(sm) }
    }

    /// Adds the entry `name`, launched with blocks of exactly `block` threads, whose instructions `body` emits. A
    /// closing `ret` is added.
    ///
    /// # Panics
    /// If `name` is not a PTX identifier or is taken.
    #[track_caller]
    pub fn entry(&mut self, name: &str, block: [u32; 3], body: impl FnOnce(&Entry)) {
        let legal = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$');
        assert!(legal, "invalid PTX identifier `{name}`; expected letters, digits, `_` and `$`, a letter first");
        assert!(self.entries.iter().all(|entry| entry.name != name), "duplicate entry `{name}`");
        let entry = Entry {
            name: name.to_string(),
            block,
            sm: self.sm,
            features: self.features,
            version: Cell::new(self.version),
            params: RefCell::default(),
            directives: RefCell::default(),
            registers: RefCell::default(),
            named: RefCell::default(),
            shared: RefCell::default(),
            dynamic_shared: Cell::new(None),
            barriers: Cell::new(1),
            lines: RefCell::default(),
            labels: Cell::new(0),
            guard: RefCell::default(),
        };
        body(&entry);
        entry.ret();
        self.version = entry.version.get();
        self.dynamic_shared = self.dynamic_shared.max(entry.dynamic_shared.get());
        self.entries.push(entry);
    }

    /// The architecture that the module is written for.
    pub fn sm(&self) -> Sm {
        self.sm
    }

    /// The lowest language version that has everything the module uses.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The text for the driver: each instruction carries the Rust line that wrote it (`.loc`), for profilers and for
    /// the simulator's reports.
    pub fn text(&self) -> String {
        let (mut bodies, mut files) = (String::new(), Vec::new());
        for entry in &self.entries {
            entry.render(&mut bodies, &mut files);
        }
        let mut text = format!(".version {}\n.target {}\n.address_size 64\n", self.version, self.sm.target());
        for (number, (_, file)) in files.iter().enumerate() {
            writeln!(text, ".file {} \"{file}\"", number + 1).expect("writing to a string succeeds");
        }
        if let Some(align) = self.dynamic_shared {
            writeln!(text, "\n.extern .shared .align {align} .b8 {DYNAMIC_SHARED}[];")
                .expect("writing to a string succeeds");
        }
        text + &bodies
    }

    /// [`text`](Self::text) for readers, [`without_lines`].
    pub fn listing(&self) -> String {
        without_lines(&self.text())
    }
}

/// The text of a module without the Rust lines that wrote it, `.loc` and `.file`: it changes only with the code.
pub fn without_lines(text: &str) -> String {
    let is_code = |line: &&str| !line.starts_with("    .loc ") && !line.starts_with(".file ");
    text.split_inclusive('\n').filter(is_code).collect()
}

impl Entry {
    fn render(&self, text: &mut String, files: &mut Vec<(&'static str, String)>) {
        let mut put = |line: std::fmt::Arguments<'_>| {
            text.write_fmt(line).and_then(|()| text.write_char('\n')).expect("writing to a string succeeds");
        };
        put(format_args!("\n.visible .entry {}(", self.name));
        let params = self.params.borrow();
        for (i, param) in params.iter().enumerate() {
            let comma = if i + 1 < params.len() { "," } else { "" };
            put(format_args!("    .param {}{comma}", param.text));
        }
        let [x, y, z] = self.block;
        put(format_args!(")\n.reqntid {x}, {y}, {z}"));
        self.directives.borrow().iter().for_each(|directive| put(format_args!("{directive}")));
        put(format_args!("{{"));
        for ((prefix, declared), count) in DECLARATIONS.iter().zip(*self.registers.borrow()) {
            if count > 0 {
                put(format_args!("    .reg {declared} %{prefix}<{count}>;"));
            }
        }
        for Named { name, declared, count } in &*self.named.borrow() {
            put(format_args!("    .reg {declared} %{name}<{count}>;"));
        }
        for SharedArray { name, bytes, align } in &*self.shared.borrow() {
            put(format_args!("    .shared .align {align} .b8 {name}[{bytes}];"));
        }
        put(format_args!(""));
        let mut last = None;
        for line in &*self.lines.borrow() {
            match line {
                Line::Comment(comment) => put(format_args!("    // {comment}")),
                Line::Label(label) => put(format_args!("{label}:")),
                Line::Instruction { text, at } => {
                    if last != Some((at.file(), at.line())) {
                        let known = files.iter().position(|&(path, _)| path == at.file());
                        let number = known.unwrap_or_else(|| {
                            files.push((at.file(), within_crate(at.file())));
                            files.len() - 1
                        });
                        put(format_args!("    .loc {} {} {}", number + 1, at.line(), at.column()));
                        last = Some((at.file(), at.line()));
                    }
                    put(format_args!("    {text};"));
                }
            }
        }
        put(format_args!("}}"));
    }
}

/// The path of a source file from its crate's root: rustc gives it relative to its working directory, which differs
/// between machines and between a workspace and a package from a registry.
fn within_crate(path: &str) -> String {
    let path = path.replace('\\', "/");
    let roots = ["/src/", "/tests/", "/examples/", "/benches/"];
    let root = roots.iter().filter_map(|root| path.rfind(root)).max();
    root.map_or_else(|| path.rsplit('/').next().unwrap_or(&path).to_string(), |at| path[at + 1..].to_string())
}

/// A parameter of type `T`, declared and not yet loaded.
#[derive(Clone, Debug)]
pub struct Param<T: Type> {
    pub(super) name: String,
    kind: std::marker::PhantomData<T>,
}

/// A parameter that holds the address of device memory.
#[derive(Clone, Debug)]
pub struct PointerParam {
    pub(super) name: String,
}

/// A parameter of bytes that the kernel uses in place: the descriptor of a bulk tensor copy.
#[derive(Clone, Debug)]
pub struct BytesParam {
    pub(super) name: String,
}

/// Methods that write an instruction without a result: its operands, its text, and what it needs of the target.
macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident($($operand:ident: $ty:ty),*) = $text:literal
        $(needs $what:literal $major:literal $minor:literal $feature:ident)?;)*) => {
        impl Entry {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self, $($operand: $ty),*) {
                $(self.needs($what, $crate::Version($major, $minor), $crate::Feature::$feature);)?
                self.write(format!($text));
            }
        )*}
    };
}
pub(super) use statements;

/// Builder of an entry's body. Methods emit one instruction each and return the register that they define; those that
/// emit more say so.
///
/// Methods take `&self`, so that calls nest as expressions do: `k.fma(x, k.mul(a, b), c)`.
#[derive(Debug)]
pub struct Entry {
    name: String,
    block: [u32; 3],
    sm: Sm,
    features: &'static [Feature],
    version: Cell<Version>,
    params: RefCell<Vec<Declared>>,
    directives: RefCell<Vec<String>>,
    registers: RefCell<[u32; CLASSES]>,
    named: RefCell<Vec<Named>>,
    shared: RefCell<Vec<SharedArray>>,
    dynamic_shared: Cell<Option<u32>>,
    /// The next named barrier; 0 is that of the whole block.
    pub(super) barriers: Cell<u8>,
    lines: RefCell<Vec<Line>>,
    labels: Cell<u32>,
    /// The predicate of [`Entry::when`], as the prefix of an instruction.
    pub(super) guard: RefCell<Option<String>>,
}

impl Entry {
    /// The architecture that the entry is written for.
    pub fn sm(&self) -> Sm {
        self.sm
    }

    /// Declares the parameter `name`.
    ///
    /// # Panics
    /// If the name is taken.
    #[track_caller]
    pub fn param<T: Type>(&self, name: &str) -> Param<T> {
        self.declare(name, T::SUFFIX);
        Param { name: name.to_string(), kind: std::marker::PhantomData }
    }

    /// Declares the parameter `name`, the address of device memory.
    ///
    /// # Panics
    /// If the name is taken.
    #[track_caller]
    pub fn pointer_param(&self, name: &str) -> PointerParam {
        self.declare(name, U64::SUFFIX);
        PointerParam { name: name.to_string() }
    }

    /// Declares the parameter `name` of `bytes` bytes, passed by value and used in place.
    ///
    /// # Panics
    /// If the name is taken.
    #[track_caller]
    pub fn bytes_param(&self, name: &str, bytes: u32, align: u32) -> BytesParam {
        self.declare_as(name, format!(".align {align} .b8 {name}[{bytes}]"));
        BytesParam { name: name.to_string() }
    }

    /// Declares the parameter `name` and loads it: one instruction.
    ///
    /// # Panics
    /// If the name is taken.
    #[track_caller]
    pub fn load_param<T: Type>(&self, name: &str) -> Reg<T> {
        self.ld_param(self.param(name))
    }

    /// Declares the parameter `name`, an address in device memory, and loads it: two instructions.
    ///
    /// # Panics
    /// If the name is taken.
    #[track_caller]
    pub fn load_pointer(&self, name: &str) -> Ptr<Global> {
        self.cvta_to_global(self.ld_param_pointer(self.pointer_param(name)))
    }

    #[track_caller]
    fn declare(&self, name: &str, kind: &'static str) {
        self.declare_as(name, format!("{kind} {name}"));
    }

    #[track_caller]
    fn declare_as(&self, name: &str, text: String) {
        let mut params = self.params.borrow_mut();
        assert!(params.iter().all(|param| param.name != name), "duplicate parameter `{name}`");
        params.push(Declared { name: name.to_string(), text });
    }

    /// Requests that so many blocks are resident on a multiprocessor: `.minnctapersm`, which bounds the registers.
    pub fn min_ctas_per_sm(&self, blocks: u32) {
        self.directives.borrow_mut().push(format!(".minnctapersm {blocks}"));
    }

    /// Launches the grid in clusters of `blocks` consecutive blocks in x, 2 to 8: `.reqnctapercluster`. The grid's x is a
    /// multiple of it.
    ///
    /// # Panics
    /// If the target has no clusters.
    #[track_caller]
    pub fn cluster(&self, blocks: u32) {
        self.needs(".reqnctapercluster", Version(7, 8), Feature::BulkCopies);
        assert!((2..=8).contains(&blocks), "a cluster of {blocks} blocks; expected 2 to 8");
        self.directives.borrow_mut().push(format!(".reqnctapercluster {blocks}, 1, 1"));
    }

    /// The most registers of a thread: `.maxnreg`. Without it, the driver's assembler may use more registers to start
    /// loads earlier.
    pub fn maxnreg(&self, registers: u32) {
        self.directives.borrow_mut().push(format!(".maxnreg {registers}"));
    }

    /// A hint to the driver's assembler among the entry's directives: `.pragma "nounroll";`.
    pub fn pragma(&self, text: &str) {
        self.directives.borrow_mut().push(format!(".pragma \"{text}\";"));
    }

    /// `count` registers named after `name`, undefined until an instruction writes them: `%acc0`, `%acc1`, …. Another
    /// call with the same name adds further ones.
    ///
    /// # Panics
    /// If the name has characters other than lower-case letters and `_`, or is that of registers of another type.
    #[track_caller]
    pub fn registers<T: Type>(&self, name: &'static str, count: usize) -> Vec<Reg<T>> {
        let word = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        assert!(word, "invalid register name `{name}`; expected lower-case letters and `_`");
        assert!(
            DECLARATIONS.iter().all(|(prefix, _)| *prefix != name),
            "register name `{name}` is reserved for a type"
        );
        let mut named = self.named.borrow_mut();
        let position = named.iter().position(|known| known.name == name).unwrap_or_else(|| {
            named.push(Named { name, declared: T::DECLARED, count: 0 });
            named.len() - 1
        });
        let known = &mut named[position];
        assert_eq!(known.declared, T::DECLARED, "registers `{name}` are declared with another type");
        let first = known.count;
        known.count += count as u32;
        (first..known.count).map(|index| Reg::named(name, index)).collect()
    }

    /// A named register initialized with `value`: a loop variable.
    #[track_caller]
    pub fn variable<T: Type>(&self, name: &'static str, value: impl super::Operand<T>) -> Reg<T> {
        let variable = self.registers(name, 1)[0];
        self.assign(variable, value);
        variable
    }

    /// A static array of `bytes` bytes in shared memory, at a multiple of `align`. One instruction: its address.
    ///
    /// # Panics
    /// If the name is taken, or the entry's arrays exceed 48 KiB, the most static shared memory of a block.
    #[track_caller]
    pub fn shared_array(&self, name: &str, bytes: u32, align: u32) -> Ptr<Shared> {
        {
            let mut shared = self.shared.borrow_mut();
            assert!(shared.iter().all(|array| array.name != name), "duplicate shared array `{name}`");
            let total = bytes + shared.iter().map(|array| array.bytes).sum::<u32>();
            assert!(
                total <= 48 * 1024,
                "{total} bytes of static shared memory; expected at most 49152, use dynamic_shared for more"
            );
            shared.push(SharedArray { name: name.to_string(), bytes, align });
        }
        Ptr::new(self.define(format_args!("mov.u32"), &[name.to_string()]))
    }

    /// The dynamic shared memory of the launch (`Launch::shared_bytes`), at a multiple of `align`. One instruction: its
    /// address.
    #[track_caller]
    pub fn dynamic_shared(&self, align: u32) -> Ptr<Shared> {
        self.dynamic_shared.set(self.dynamic_shared.get().max(Some(align)));
        Ptr::new(self.define(format_args!("mov.u32"), &[DYNAMIC_SHARED.to_string()]))
    }

    /// Emits a comment.
    ///
    /// # Panics
    /// If it is not ASCII.
    #[track_caller]
    pub fn comment(&self, text: &str) {
        assert!(text.is_ascii(), "comment `{text}` is not ASCII");
        self.lines.borrow_mut().push(Line::Comment(text.to_string()));
    }

    /// A fresh register, undefined until an instruction writes it.
    pub(super) fn fresh<T: Type>(&self) -> Reg<T> {
        let mut counts = self.registers.borrow_mut();
        let index = counts[T::CLASS];
        counts[T::CLASS] += 1;
        Reg::new(index)
    }

    /// A fresh pointer register.
    pub(super) fn fresh_pointer(&self) -> Ptr<Generic> {
        Ptr::new(self.fresh())
    }

    /// Emits `text` as one instruction, under the guard if there is one.
    #[track_caller]
    pub(super) fn write(&self, text: String) {
        let text = match &*self.guard.borrow() {
            Some(guard) => format!("{guard} {text}"),
            None => text,
        };
        self.lines.borrow_mut().push(Line::Instruction { text, at: Location::caller() });
    }

    /// Emits `mnemonic destination, operands…` and returns the destination.
    #[track_caller]
    pub(super) fn define<T: Type>(&self, mnemonic: std::fmt::Arguments<'_>, operands: &[String]) -> Reg<T> {
        let destination = self.fresh::<T>();
        self.write(format!("{mnemonic} {destination}, {}", operands.join(", ")));
        destination
    }

    /// A fresh label.
    pub(super) fn label(&self) -> String {
        let number = self.labels.get();
        self.labels.set(number + 1);
        format!("$L{number}")
    }

    /// Places `label` here.
    pub(super) fn place(&self, label: String) {
        self.lines.borrow_mut().push(Line::Label(label));
    }

    /// Raises the module's version to what `instruction` needs.
    ///
    /// # Panics
    /// If the target lacks the instruction.
    #[track_caller]
    pub(super) fn needs(&self, instruction: &str, version: Version, feature: Feature) {
        assert!(
            self.features.contains(&feature),
            "{instruction} needs {feature:?}, which {} does not have",
            self.sm.target()
        );
        self.version.set(self.version.get().max(version));
    }
}
