//! Job queue of the planted fault `members_on_shared_workers`.

use loom::sync::{Condvar, Mutex};

/// Queue of jobs for idle workers; a job is the index of a team.
pub(crate) struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

struct Jobs {
    leaders: Vec<usize>,
    members: Vec<usize>,
    /// Unfinished leaders.
    left: usize,
}

pub(crate) enum Job {
    Lead(usize),
    TakePart(usize),
}

impl Queue {
    /// Queue with the leaders of `callers` teams.
    pub(crate) fn new(callers: usize) -> Self {
        let jobs = Jobs { leaders: (0..callers).collect(), members: vec![], left: callers };
        Self { jobs: Mutex::new(jobs), changed: Condvar::new() }
    }

    /// Waits for a job: a member if there is one, else a leader. `None` if all leaders are done.
    pub(crate) fn take(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock().unwrap();
        loop {
            if let Some(team) = jobs.members.pop() {
                return Some(Job::TakePart(team));
            }
            if let Some(team) = jobs.leaders.pop() {
                return Some(Job::Lead(team));
            }
            if jobs.left == 0 {
                return None;
            }
            jobs = self.changed.wait(jobs).unwrap();
        }
    }

    pub(crate) fn put_up_member(&self, team: usize) {
        self.jobs.lock().unwrap().members.push(team);
        self.changed.notify_all();
    }

    pub(crate) fn leader_is_done(&self) {
        self.jobs.lock().unwrap().left -= 1;
        self.changed.notify_all();
    }
}
