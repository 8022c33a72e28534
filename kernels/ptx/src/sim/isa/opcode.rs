//! The name of an instruction, taken apart.

use super::Type;

/// The opcode's parts while it is understood.
#[derive(Clone, Debug)]
pub(crate) struct Opcode<'a> {
    pub(crate) name: &'a str,
    /// The parts behind the name that are not taken yet.
    pub(crate) parts: Vec<&'a str>,
}

impl<'a> Opcode<'a> {
    pub(crate) fn new(full: &'a str) -> Self {
        let mut parts = full.split('.');
        let name = parts.next().unwrap_or_default();
        Self { name, parts: parts.collect() }
    }

    /// Whether `part` is there; takes it if so.
    pub(crate) fn take(&mut self, part: &str) -> bool {
        let at = self.parts.iter().position(|found| *found == part);
        at.map(|at| self.parts.remove(at)).is_some()
    }

    /// Consumes `part`, which may be missing, and returns `then`.
    pub(crate) fn after<T>(&mut self, part: &str, then: T) -> T {
        self.take(part);
        then
    }

    /// Consumes everything that is left, and returns `then`.
    pub(crate) fn all<T>(&mut self, then: T) -> T {
        self.parts.clear();
        then
    }

    /// Whether all of `parts` are there; takes them in their order as far as they are.
    pub(crate) fn takes(&mut self, parts: &[&str]) -> bool {
        parts.iter().all(|part| self.take(part))
    }

    /// Consumes the first of the named `choices` that is there.
    pub(crate) fn choose<T: Copy>(&mut self, choices: &[(&str, T)]) -> Option<T> {
        choices.iter().find(|(name, _)| self.take(name)).map(|(_, choice)| *choice)
    }

    /// Consumes all of `parts` that are there.
    pub(crate) fn drop_all(&mut self, parts: &[&str]) {
        self.parts.retain(|found| !parts.contains(found));
    }

    /// Consumes what begins with `prefix`.
    pub(crate) fn drop_prefixed(&mut self, prefixes: &[&str]) {
        self.parts.retain(|found| !prefixes.iter().any(|prefix| found.starts_with(prefix)));
    }

    /// Consumes the type at the end.
    pub(crate) fn ty(&mut self) -> Option<Type> {
        let ty = Type::named(self.parts.last()?)?;
        self.parts.pop();
        Some(ty)
    }

    /// Consumes the type at the end, which must be one of `allowed`.
    pub(crate) fn ty_of(&mut self, allowed: &[Type]) -> Option<Type> {
        self.ty().filter(|ty| allowed.contains(ty))
    }

    /// Consumes the hints that change no result: caching, prefetching, unified addressing.
    pub(crate) fn drop_hints(&mut self) {
        self.drop_prefixed(&["L1::", "L2::", "level::"]);
        self.drop_all(&["ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified"]);
    }
}
