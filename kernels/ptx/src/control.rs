//! Comparisons, guards, branches and loops.
//!
//! Branches are structured: a closure is the body, and labels are generated. Each structure emits the instructions that
//! its documentation lists, and no others.

use super::{Entry, F32, Number, Operand, Pred, Reg, U32};

named! {
    /// A comparison; of floats false where either is NaN.
    pub enum Compare {
        /// a = b
        Eq "eq",
        /// a ≠ b; of floats false where either is NaN.
        Ne "ne",
        /// a < b
        Lt "lt",
        /// a ≤ b
        Le "le",
        /// a > b
        Gt "gt",
        /// a ≥ b
        Ge "ge",
    }
}

impl Entry {
    /// Result of a comparison of a and b: `setp`.
    #[track_caller]
    pub fn setp<T: Number>(&self, compare: Compare, a: Reg<T>, b: impl Operand<T>) -> Reg<Pred> {
        self.define(format_args!("setp.{}{}", compare.name(), T::SUFFIX), &[a.text(), b.text()])
    }

    /// a < b of integers.
    #[track_caller]
    pub fn lt(&self, a: Reg<U32>, b: impl Operand<U32>) -> Reg<Pred> {
        self.setp(Compare::Lt, a, b)
    }

    /// a < b of floats; false where either is NaN.
    #[track_caller]
    pub fn lt_f32(&self, a: Reg<F32>, b: f32) -> Reg<Pred> {
        self.setp(Compare::Lt, a, b)
    }

    /// Guards every instruction that `body` emits: `@%p st…`. No branch; registers that the body defines stay undefined
    /// where the condition does not hold.
    ///
    /// # Panics
    /// If a guard is open already, or if `body` writes a branch or a loop.
    #[track_caller]
    pub fn when<R>(&self, condition: Reg<Pred>, body: impl FnOnce() -> R) -> R {
        self.guarded(format!("@{condition}"), body)
    }

    /// [`Entry::when`] for the opposite: `@!%p st…`.
    ///
    /// # Panics
    /// As [`Entry::when`].
    #[track_caller]
    pub fn unless<R>(&self, condition: Reg<Pred>, body: impl FnOnce() -> R) -> R {
        self.guarded(format!("@!{condition}"), body)
    }

    #[track_caller]
    fn guarded<R>(&self, guard: String, body: impl FnOnce() -> R) -> R {
        assert!(self.guard.borrow().is_none(), "nested guards; combine the conditions first");
        *self.guard.borrow_mut() = Some(guard);
        let result = body();
        *self.guard.borrow_mut() = None;
        result
    }

    /// Runs `body` where the condition holds. Emits a branch before and a label after it.
    #[track_caller]
    pub fn if_(&self, condition: Reg<Pred>, body: impl FnOnce()) {
        self.unguarded();
        let end = self.label();
        self.write(format!("@!{condition} bra {end}"));
        body();
        self.place(end);
    }

    /// Runs `then` where the condition holds and `otherwise` where it does not. Emits two branches and two labels.
    #[track_caller]
    pub fn if_else(&self, condition: Reg<Pred>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        self.unguarded();
        let (other, end) = (self.label(), self.label());
        self.write(format!("@!{condition} bra {other}"));
        then();
        self.write(format!("bra {end}"));
        self.place(other);
        otherwise();
        self.place(end);
    }

    /// Runs `body` for i = start, start + step, … while i < end; bounds may differ between threads. `end + step` must
    /// fit 32 bits.
    ///
    /// Emits `mov, setp, @bra` before the body and `add, setp, @bra` after it.
    #[track_caller]
    pub fn for_(
        &self,
        start: impl Operand<U32>,
        end: impl Operand<U32>,
        step: impl Operand<U32>,
        body: impl FnOnce(Reg<U32>),
    ) {
        self.unguarded();
        let (head, exit) = (self.label(), self.label());
        let i = self.mov(start);
        let none = self.setp(Compare::Ge, i, end);
        self.write(format!("@{none} bra {exit}"));
        self.place(head.clone());
        body(i);
        self.add_into(i, i, step);
        let more = self.lt(i, end);
        self.write(format!("@{more} bra {head}"));
        self.place(exit);
    }

    /// Repeats `body` while the condition that it returns holds, which may differ between threads.
    ///
    /// Emits a label before the body and `@bra` after it.
    #[track_caller]
    pub fn repeat_while(&self, body: impl FnOnce() -> Reg<Pred>) {
        self.unguarded();
        let head = self.label();
        self.place(head.clone());
        let again = body();
        self.write(format!("@{again} bra {head}"));
    }

    /// Ends the thread here: `exit`.
    #[track_caller]
    pub fn exit(&self) {
        self.write("exit".to_string());
    }

    /// Ends the kernel with an error at the host: `trap`.
    #[track_caller]
    pub fn trap(&self) {
        self.write("trap".to_string());
    }

    /// Ends the thread.
    #[track_caller]
    pub(super) fn ret(&self) {
        self.write("ret".to_string());
    }

    #[track_caller]
    fn unguarded(&self) {
        assert!(self.guard.borrow().is_none(), "a guarded body is straight-line code: use `if_`");
    }
}
