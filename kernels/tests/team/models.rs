//! Models: a few threads, a few loops, cells that detect races.

use super::team::Team;
use crate::primitives::{Cell, Wait, check};
use loom::{sync::Arc, thread};

/// Team and its member threads; `end` dissolves the team and joins them.
struct Threads {
    team: Arc<Team>,
    members: Vec<thread::JoinHandle<()>>,
}

impl Threads {
    fn new(participants: usize) -> Self {
        let team = Arc::new(Team::new(participants, participants));
        let members = (1..participants).map(|me| {
            let team = Arc::clone(&team);
            thread::spawn(move || team.take_part(me))
        });
        Self { members: members.collect(), team }
    }

    fn end(self) {
        self.team.dissolve();
        self.members.into_iter().for_each(|member| member.join().unwrap());
    }
}

/// Cells that tasks write; loom reports accesses that are not ordered.
struct Cells(Vec<Cell<usize>>);

// SAFETY: loom checks every access, and fails the model if two are not ordered.
unsafe impl Sync for Cells {}
// SAFETY: as above.
unsafe impl Send for Cells {}

impl Cells {
    fn new(len: usize) -> Self {
        Self((0..len).map(|_| Cell::new(0)).collect())
    }
    fn get(&self, i: usize) -> usize {
        // SAFETY: as above.
        self.0[i].with(|cell| unsafe { *cell })
    }
    fn add(&self, i: usize, value: usize) {
        // SAFETY: as above.
        self.0[i].with_mut(|cell| unsafe { *cell += value });
    }
}

/// One loop of three tasks.
pub(crate) fn three_tasks(name: &str, wait: Wait, preemptions: Option<usize>) {
    check(name, wait, preemptions, || {
        let threads = Threads::new(2);
        let cells = Cells::new(3);
        (0..3).for_each(|i| cells.add(i, 1));
        threads.team.run(3, &|i| cells.add(i, 1 + i));
        assert_eq!([0, 1, 2].map(|i| cells.get(i)), [2, 3, 4]);
        threads.end();
    });
}

/// Three loops of two tasks; each task reads the cell that the other task wrote in the previous loop.
pub(crate) fn three_loops(name: &str, wait: Wait, preemptions: Option<usize>) {
    check(name, wait, preemptions, || {
        let threads = Threads::new(2);
        let cells = Cells::new(4);
        threads.team.run(2, &|i| cells.add(i, 1 + i));
        threads.team.run(2, &|i| cells.add(2 + i, cells.get(1 - i)));
        threads.team.run(2, &|i| cells.add(i, 10 * cells.get(3 - i)));
        assert_eq!([0, 1, 2, 3].map(|i| cells.get(i)), [11, 22, 2, 1]);
        threads.end();
    });
}

/// Loops with all participants, before and after one that members may join.
pub(crate) fn loops_of_all(name: &str, wait: Wait, preemptions: Option<usize>) {
    check(name, wait, preemptions, || {
        let threads = Threads::new(2);
        let cells = Cells::new(2);
        threads.team.run_on_all(&|i| cells.add(i, 1));
        threads.team.run(2, &|i| cells.add(1 - i, 1));
        threads.team.run_on_all(&|i| cells.add(i, 1));
        assert_eq!([0, 1].map(|i| cells.get(i)), [3, 3]);
        threads.end();
    });
}

/// Runs `first` and `second` as two callers of one team of two.
fn callers(first: fn(&Team, &Cells), second: fn(&Team, &Cells)) {
    let threads = Threads::new(2);
    let other = {
        let team = Arc::clone(&threads.team);
        thread::spawn(move || second(&team, &Cells::new(2)))
    };
    first(&threads.team, &Cells::new(2));
    other.join().unwrap();
    threads.end();
}

/// Two concurrent callers of a loop.
pub(crate) fn two_callers(name: &str, wait: Wait, preemptions: Option<usize>) {
    let one = |team: &Team, cells: &Cells| {
        team.run(2, &|i| cells.add(i, 1));
        assert_eq!([0, 1].map(|i| cells.get(i)), [1, 1]);
    };
    check(name, wait, preemptions, move || callers(one, one));
}

/// Two concurrent callers of a loop with all threads.
pub(crate) fn two_callers_of_all(name: &str, wait: Wait, preemptions: Option<usize>) {
    let one = |team: &Team, cells: &Cells| {
        let _pass = team.pass();
        team.run_on_all(&|i| cells.add(i, 1));
        assert_eq!([0, 1].map(|i| cells.get(i)), [1, 1]);
    };
    check(name, wait, preemptions, move || callers(one, one));
}

/// Planted fault: members are joined before the team is dissolved, and wait for a loop forever.
pub(crate) fn joined_before_it_is_dissolved(name: &str) {
    check(name, Wait::Block, Some(2), || {
        let Threads { team: _team, members } = Threads::new(2);
        members.into_iter().for_each(|member| member.join().unwrap());
    });
}
