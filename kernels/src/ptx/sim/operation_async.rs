//! The forms of sm_90 that wait for and move data asynchronously: which are known, and the shapes of their operands.

use super::{decode::Opcode, types::Type};

/// An instruction of the asynchronous machinery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Async {
    /// `mbarrier.init`
    Init,
    Invalidate,
    Arrive(Arrive),
    ExpectBytes,
    CompleteBytes,
    Wait(Wait),
    PendingCount,
}

/// `mbarrier.arrive`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrive {
    /// Bytes are expected first.
    pub(super) expects: bool,
    /// Later phases expect fewer arrivals.
    pub(super) drops: bool,
    pub(super) releases: bool,
}

/// `mbarrier.test_wait` and `mbarrier.try_wait`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// It asks for a phase by its parity, not by the state of an arrival.
    pub(super) parity: bool,
    pub(super) acquires: bool,
}

/// The form of `opcode` and the shape of its operands.
pub(super) fn find(opcode: &mut Opcode<'_>) -> Option<(Async, &'static str)> {
    match opcode.name {
        "mbarrier" => mbarrier(opcode),
        _ => None,
    }
}

fn mbarrier(opcode: &mut Opcode<'_>) -> Option<(Async, &'static str)> {
    if opcode.take("pending_count") {
        opcode.ty().filter(|ty| *ty == Type::B64)?;
        return Some((Async::PendingCount, "DS"));
    }
    let relaxed = opcode.take("relaxed");
    opcode.drop_all(&["release", "acquire", "cta", "cluster", "shared", "shared::cta"]);
    let expects = opcode.take("expect_tx");
    let parity = opcode.take("parity");
    opcode.take("noComplete");
    opcode.ty().filter(|ty| *ty == Type::B64)?;
    let [action] = opcode.parts[..] else {
        return expects.then_some(()).filter(|()| opcode.parts.is_empty()).map(|()| (Async::ExpectBytes, "AS"));
    };
    opcode.parts.clear();
    let arrive = Arrive { expects, drops: action == "arrive_drop", releases: !relaxed };
    Some(match action {
        "init" => (Async::Init, "AS"),
        "inval" => (Async::Invalidate, "A"),
        "arrive" | "arrive_drop" => (Async::Arrive(arrive), if expects { "DAS" } else { "DA?S" }),
        "complete_tx" => (Async::CompleteBytes, "AS"),
        "test_wait" => (Async::Wait(Wait { parity, acquires: !relaxed }), "DAS"),
        "try_wait" => (Async::Wait(Wait { parity, acquires: !relaxed }), "DAS?S"),
        _ => return None,
    })
}
