use super::*;
use std::{
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Barrier, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

fn pool_of(threads: usize) -> Cpu {
    Cpu::new(Isa::choose().unwrap(), threads).unwrap()
}

/// Pool that wakes its threads as if each had a core, so that they interleave on any machine.
fn awake_pool_of(threads: usize) -> Cpu {
    let isa = Isa::choose().unwrap();
    let pool = Arc::new(Pool::new(threads, threads).unwrap());
    Cpu { isa, tiles: Tiles::fastest(isa), caches: Caches::detect(), pool }
}

/// Runs `test`; fails if it takes longer than two minutes.
fn ends(test: impl FnOnce() + Send + 'static) {
    let (send, over) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        send.send(()).unwrap();
    });
    match over.recv_timeout(Duration::from_secs(120)) {
        Ok(()) => thread.join().unwrap(),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the threads wait for each other"),
    }
}

#[test]
fn every_task_runs_once_for_any_number_of_threads() {
    for threads in [1, 2, 5] {
        let cpu = awake_pool_of(threads);
        for (len, chunk) in [(0, 3), (1, 3), (10, 3), (1000, 1), (1000, 1001), (4, usize::MAX)] {
            let mut out = vec![0u32; len];
            cpu.for_each_chunk(&mut out, chunk, |i, part| part.iter_mut().for_each(|x| *x += i as u32 + 1));
            let expected: Vec<u32> = (0..len).map(|j| (j / chunk) as u32 + 1).collect();
            assert_eq!(out, expected, "{threads} threads, {len} items in chunks of {chunk}");
        }
    }
}

#[test]
fn a_loop_sees_what_the_loop_before_it_wrote() {
    let rounds = |cpu: &Cpu| {
        cpu.enter(|| {
            let (mut from, mut to) = (vec![0u64; 61], vec![0u64; 61]);
            for round in 0..3000 {
                // Every element depends on two elements of the last round, which other threads wrote.
                let len = 2 + round % 60;
                cpu.for_each_chunk(&mut to[..len], 1 + round % 3, |i, part| {
                    for (j, x) in part.iter_mut().enumerate() {
                        let at = i * (1 + round % 3) + j;
                        *x = (from[at] ^ from[(at + 7) % 61]).wrapping_add((at * round) as u64);
                    }
                });
                if round % 500 == 0 {
                    // Longer than the polling time of members.
                    thread::sleep(Duration::from_millis(5));
                }
                std::mem::swap(&mut from, &mut to);
            }
            from
        })
    };
    let expected = rounds(&pool_of(1));
    for threads in [2, 3, 5] {
        assert_eq!(rounds(&awake_pool_of(threads)), expected, "{threads} threads");
    }
}

#[test]
fn every_thread_takes_part_inside_and_outside() {
    let cpu = pool_of(4);
    let threads = || {
        let seen = Mutex::new(HashSet::new());
        cpu.on_every_thread(|i| {
            assert!(i < 4);
            seen.lock().unwrap().insert(thread::current().id());
        });
        seen.into_inner().unwrap()
    };
    let outside = threads();
    assert_eq!(outside.len(), 4);
    assert_eq!(cpu.enter(threads), outside);
}

#[test]
fn a_panic_in_any_task_reaches_the_caller_and_the_pool_goes_on() {
    let cpu = awake_pool_of(3);
    for bad in [0, 8, 15] {
        let ran = AtomicUsize::new(0);
        let task = |i: usize| {
            ran.fetch_add(1, Relaxed);
            assert_ne!(i, bad, "task {bad}");
            thread::sleep(Duration::from_micros(300));
        };
        let caught = catch_unwind(AssertUnwindSafe(|| cpu.enter(|| cpu.for_each(16, task))));
        let message = *caught.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains(&format!("task {bad}")), "{message}");
        assert!(ran.into_inner() <= 16);
        let after = AtomicUsize::new(0);
        cpu.for_each(16, |_| _ = after.fetch_add(1, Relaxed));
        assert_eq!(after.into_inner(), 16);
    }
}

#[test]
fn a_pass_and_a_task_may_wait_for_another_callers_loop() {
    ends(|| {
        let cpu = pool_of(2);
        let other = |cpu: &Cpu| {
            let cpu = cpu.clone();
            let loops = thread::spawn(move || {
                let calls = AtomicUsize::new(0);
                cpu.enter(|| cpu.for_each(10, |_| _ = calls.fetch_add(1, Relaxed)));
                calls.into_inner()
            });
            assert_eq!(loops.join().unwrap(), 10);
        };
        cpu.enter(|| other(&cpu));
        cpu.for_each(4, |_| other(&cpu));
    });
}

#[test]
fn two_pools_whose_tasks_run_loops_of_each_other_do_not_deadlock() {
    ends(|| {
        let pools = [awake_pool_of(3), awake_pool_of(3)];
        let calls = AtomicUsize::new(0);
        thread::scope(|scope| {
            for (outer, inner) in [(0, 1), (1, 0)] {
                let (pools, calls) = (&pools, &calls);
                scope.spawn(move || {
                    for _ in 0..500 {
                        pools[outer].for_each(3, |_| {
                            pools[inner].for_each(3, |_| {
                                pools[outer].enter(|| pools[outer].for_each(3, |_| _ = calls.fetch_add(1, Relaxed)));
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(calls.into_inner(), 2 * 500 * 27);
    });
}

#[test]
fn loops_of_rayons_threads_share_the_pool() {
    ends(|| {
        let cpu = awake_pool_of(3);
        let calls = AtomicUsize::new(0);
        for _ in 0..200 {
            cpu.enter(|| {
                cpu.for_each(2, |_| cpu.install(|| cpu.for_each(5, |_| _ = calls.fetch_add(1, Relaxed))));
                // A thread that waits in a join runs other jobs, whose loops start inside its pass.
                let nested = || cpu.enter(|| cpu.for_each(7, |_| _ = calls.fetch_add(1, Relaxed)));
                cpu.install(|| rayon::join(|| rayon::join(nested, nested), || rayon::join(nested, nested)));
            });
        }
        assert_eq!(calls.into_inner(), 200 * (2 * 5 + 4 * 7));
    });
}

#[test]
fn reaching_every_thread_inside_a_task_is_refused_also_behind_another_pool() {
    ends(|| {
        let (cpu, other) = (pool_of(2), pool_of(2));
        let refused = |call: &(dyn Fn() + Sync)| {
            let message = *catch_unwind(AssertUnwindSafe(call)).unwrap_err().downcast::<&str>().unwrap();
            assert!(message.contains("inside a task"), "{message}");
        };
        refused(&|| cpu.for_each(2, |_| cpu.on_every_thread(|_| ())));
        refused(&|| cpu.for_each(2, |_| other.for_each(2, |_| cpu.on_every_thread(|_| ()))));
        // On a thread of the other pool.
        refused(&|| {
            cpu.for_each(2, |_| {
                other.on_every_thread(|i| {
                    if i == 1 {
                        cpu.on_every_thread(|_| ());
                    }
                })
            })
        });
        refused(&|| cpu.on_every_thread(|_| cpu.on_every_thread(|_| ())));
        cpu.for_each(2, |_| other.on_every_thread(|_| ()));
    });
}

#[test]
fn panics_of_several_threads_and_between_loops_do_not_reach_the_next_loop() {
    ends(|| {
        let cpu = pool_of(2);
        let caught = |call: &dyn Fn()| *catch_unwind(AssertUnwindSafe(call)).unwrap_err().downcast::<String>().unwrap();
        let both = Barrier::new(2);
        let panics = |i: usize| {
            both.wait();
            panic!("thread {i}");
        };
        cpu.enter(|| {
            for _ in 0..100 {
                let message = caught(&|| cpu.on_every_thread(panics));
                assert!(message.starts_with("thread "), "{message}");
                cpu.for_each(4, |_| ());
                cpu.on_every_thread(|_| ());
            }
        });
        assert!(catch_unwind(AssertUnwindSafe(|| cpu.enter(|| panic!("between loops")))).is_err());
        let calls = AtomicUsize::new(0);
        cpu.enter(|| cpu.for_each(9, |_| _ = calls.fetch_add(1, Relaxed)));
        assert_eq!(calls.into_inner(), 9);
    });
}

#[test]
#[should_panic(expected = "chunk is 0")]
fn chunks_of_no_items_are_refused() {
    pool_of(2).for_each_chunk(&mut [0u8; 4], 0, |_, _| ());
}

#[test]
fn numbers_of_threads_beyond_the_limit_are_an_error() {
    let error = Cpu::new(Isa::choose().unwrap(), 1025).unwrap_err().to_string();
    assert!(error.contains("1025") && error.contains("1 to 1024"), "{error}");
}

/// CPU time of the calling thread.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that outlives the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time that each thread of the pool takes for `work`.
fn thread_times(cpu: &Cpu, work: impl FnOnce()) -> Vec<Duration> {
    let times = |cpu: &Cpu| {
        let times: Vec<_> = (0..cpu.threads()).map(|_| OnceLock::new()).collect();
        cpu.on_every_thread(|i| times[i].set(thread_time()).unwrap());
        times.into_iter().map(|time| time.into_inner().unwrap()).collect::<Vec<_>>()
    };
    let before = times(cpu);
    work();
    times(cpu).iter().zip(&before).map(|(after, before)| *after - *before).collect()
}

#[test]
fn threads_that_wait_long_do_not_take_cores() {
    let cpu = pool_of(2);
    let long = Duration::from_millis(400);
    let check = |what: &str, times: Vec<Duration>| {
        assert!(times.iter().all(|time| *time < long / 10), "{what}: {times:?}");
    };
    check("members between loops", thread_times(&cpu, || cpu.enter(|| thread::sleep(long))));
    check("members outside of a pass", thread_times(&cpu, || thread::sleep(long)));
    for slow in 0..2 {
        let work = || {
            cpu.enter(|| {
                cpu.on_every_thread(|i| {
                    if i == slow {
                        thread::sleep(long)
                    }
                })
            })
        };
        check("a leader whose member is slow, and the reverse", thread_times(&cpu, work));
    }
}

#[test]
fn members_poll_inside_a_pass() {
    // Best of many: other programs may use the cores.
    let cpu = awake_pool_of(2);
    let answer = || {
        let both = Barrier::new(2);
        let start = Instant::now();
        cpu.on_every_thread(|_| _ = both.wait());
        start.elapsed()
    };
    let best = cpu.enter(|| (0..200).map(|_| answer()).min().unwrap());
    assert!(best < Duration::from_millis(1), "{best:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn the_default_number_of_threads_follows_the_affinity_mask() {
    // `available_parallelism` uses the affinity mask of the calling thread.
    thread::spawn(|| {
        // SAFETY: all zeros is the empty set; the pointers are to sets that outlive the calls, of the size given.
        unsafe {
            let size = size_of::<libc::cpu_set_t>();
            let (mut allowed, mut one): (libc::cpu_set_t, libc::cpu_set_t) = (std::mem::zeroed(), std::mem::zeroed());
            assert_eq!(libc::sched_getaffinity(0, size, &mut allowed), 0);
            assert!(cores() <= libc::CPU_COUNT(&allowed) as usize);
            let first = (0..libc::CPU_SETSIZE as usize).find(|&core| libc::CPU_ISSET(core, &allowed)).unwrap();
            libc::CPU_SET(first, &mut one);
            assert_eq!(libc::sched_setaffinity(0, size, &one), 0);
        }
        assert_eq!(cores(), 1);
    })
    .join()
    .unwrap();
}

#[test]
fn lists_of_cores_are_counted() {
    assert_eq!(
        ["0", "0-3,8,10-11\n", "", "a-b", "3-1"].map(super::count_of_list),
        [Some(1), Some(7), None, None, None]
    );
    assert!(super::online_cores() >= 1);
}
