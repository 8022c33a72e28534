//! Ranks that are threads of one process.

use super::{Failure, Transport};
use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Messages between the ranks.
struct Post {
    /// Messages from a rank to another, `[from · size + to]`.
    messages: Vec<VecDeque<Vec<u8>>>,
    /// Ranks that have ended.
    gone: Vec<bool>,
}

struct Shared {
    size: usize,
    post: Mutex<Post>,
    changed: Condvar,
}

/// One of the ranks.
pub(super) struct Member {
    rank: usize,
    shared: Arc<Shared>,
}

impl Member {
    /// All ranks.
    pub(super) fn new(size: usize) -> Vec<Self> {
        assert!(size > 0, "no ranks");
        let post = Post { messages: vec![VecDeque::new(); size * size], gone: vec![false; size] };
        let shared = Arc::new(Shared { size, post: Mutex::new(post), changed: Condvar::new() });
        (0..size).map(|rank| Self { rank, shared: Arc::clone(&shared) }).collect()
    }

    fn leave(&self) {
        self.shared.post.lock().unwrap_or_else(PoisonError::into_inner).gone[self.rank] = true;
        self.shared.changed.notify_all();
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} of {}", self.rank, self.shared.size)
    }
}

impl Transport for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn exchange(
        &self,
        (to, send): (usize, &[u8]),
        (from, receive): (usize, &mut [u8]),
        timeout: Duration,
    ) -> Result<(), Failure> {
        let size = self.shared.size;
        let deadline = Instant::now() + timeout;
        let mut post = self.shared.post.lock().unwrap_or_else(PoisonError::into_inner);
        if !send.is_empty() {
            post.messages[self.rank * size + to].push_back(send.to_vec());
            self.shared.changed.notify_all();
        }
        if receive.is_empty() {
            return Ok(());
        }
        loop {
            if let Some(message) = post.messages[from * size + self.rank].pop_front() {
                receive.copy_from_slice(&message);
                return Ok(());
            }
            if post.gone[from] {
                return Err(Failure::Gone { rank: from });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::Late { rank: from, or: None });
            }
            post = self.shared.changed.wait_timeout(post, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn abort(&self) {
        self.leave();
    }

    fn finish(&self) {}
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}
