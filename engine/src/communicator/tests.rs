use super::*;
use crate::shared_tests::*;

/// Some bytes, more than a transport sends at once.
const MESSAGE: usize = 4 << 20;

fn gradients(device: &str, len: usize) -> Gradients {
    let (params, _) = parameters(0, [("w", &[len], Init::Zeros)]);
    params.gradients(&Device::named(device, cpu(1)).unwrap()).unwrap()
}

/// Gradient of a lane: sign and magnitude vary, so that every order of additions has bits of its own.
fn of_lane(lane: usize, len: usize) -> Vec<f32> {
    let mut stream = Stream::new(7, [lane as u32, 0, 0]);
    (0..len).map(|i| (stream.next_f32() - 0.5) * 2f32.powi(i as i32 % 20)).collect()
}

/// Sum along the tree, by its definition.
fn tree(lanes: std::ops::Range<usize>, len: usize) -> Vec<f32> {
    if lanes.len() == 1 {
        return of_lane(lanes.start, len);
    }
    let middle = lanes.start + lanes.len() / 2;
    let (left, right) = (tree(lanes.start..middle, len), tree(middle..lanes.end, len));
    left.iter().zip(right).map(|(x, y)| x + y).collect()
}

/// Runs `work` on every rank of `size`, each on a thread.
fn on_ranks<T: Send>(size: usize, work: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = Communicator::threads(size).into_iter().map(|rank| scope.spawn(|| work(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The sum of a step on every rank, as bits; `steps` are taken, so that buffers are used again.
fn sums(device: &str, size: usize, lanes: usize, len: usize, steps: usize) -> Vec<Vec<u32>> {
    on_ranks(size, |rank| {
        rank.set_timeout(Duration::from_secs(60));
        let mut gradients = gradients(device, len);
        let lanes = Lanes::new(&rank, "lanes", lanes).unwrap();
        let mut sums = LaneSums::new(rank, lanes.clone(), &gradients).unwrap();
        for _ in 0..steps {
            gradients.clear().unwrap();
            sums.begin_step();
            for lane in lanes.own() {
                sums.begin_lane(lane, &mut gradients).unwrap();
                let add = |sum: &mut [f32]| {
                    sum.iter_mut().zip(of_lane(lane, len)).for_each(|(sum, x)| *sum += x);
                    Ok(())
                };
                gradients.on_host(add).unwrap();
            }
            sums.all_reduce("gradients", &mut gradients).unwrap();
        }
        gradients.elements().unwrap().iter().map(|x| x.to_bits()).collect()
    })
}

#[test]
fn the_sum_is_that_of_the_tree_for_any_number_of_ranks() {
    let check = |device: &str, lanes: usize, len: usize, sizes: &mut dyn Iterator<Item = usize>, steps: usize| {
        let expected: Vec<u32> = tree(0..lanes, len).iter().map(|x| x.to_bits()).collect();
        for size in sizes {
            for (rank, sum) in sums(device, size, lanes, len, steps).into_iter().enumerate() {
                assert!(sum == expected, "{lanes} lanes of {len} on {device}, rank {rank} of {size}");
            }
        }
    };
    for lanes in [1, 2, 8, 16] {
        for len in [0, 1, 2, 7, 1000] {
            check("cpu", lanes, len, &mut (1..=lanes).filter(|size| *size <= 9 || *size == lanes), 2);
        }
    }
    // Lanes are added on the device, and what ranks exchange on the host.
    check("cuda-sim", 8, 50, &mut (1..=3), 2);
    // Slices of more than a message, of which ranks send different numbers: rank 2 of 3 has two subtrees.
    check("cpu", 4, 5 * MESSAGE / 4, &mut (2..=4), 1);
    let in_order =
        (1..16).fold(of_lane(0, 1000), |sum, lane| sum.iter().zip(of_lane(lane, 1000)).map(|(x, y)| x + y).collect());
    assert!(in_order != tree(0..16, 1000), "the data must show the order of additions");
}

#[test]
fn an_interrupted_step_leaves_nothing_behind() {
    let rank = Communicator::default();
    let mut gradients = gradients("cpu", 5);
    let lanes = Lanes::new(&rank, "lanes", 4).unwrap();
    let mut sums = LaneSums::new(rank, lanes.clone(), &gradients).unwrap();
    for interrupted in [true, false] {
        gradients.clear().unwrap();
        sums.begin_step();
        for lane in lanes.own().take(if interrupted { 3 } else { 4 }) {
            sums.begin_lane(lane, &mut gradients).unwrap();
            gradients.all_mut().copy_from_slice(&of_lane(lane, 5));
        }
        if !interrupted {
            sums.all_reduce("gradients", &mut gradients).unwrap();
        }
    }
    assert_eq!(gradients.all(), tree(0..4, 5));
}

#[test]
fn lanes_that_do_not_fit_are_refused() {
    let lanes = |size: usize, lanes| Lanes::new(&Communicator::threads(size)[0], "batch.lanes", lanes);
    let expected =
        "batch.lanes = 2: 3 ranks need at least as many lanes; set batch.lanes = 4, which changes the order of sums";
    assert_eq!(lanes(3, 2).unwrap_err().to_string(), expected);
    refused(lanes(1, 12), "power of two");
    refused(lanes(1, 2048), "at most 1024");
}

#[test]
fn every_rank_gathers_what_all_have() {
    for size in 1..6 {
        let all = on_ranks(size, |rank| {
            let mine = vec![rank.rank() as u8; 3 * rank.rank()];
            let counts = rank.sum_counts("counts", [rank.rank() as u64, u64::MAX / 8]).unwrap();
            let any = rank.any("stop", rank.rank() == 2).unwrap();
            (rank.gather("names", &mine).unwrap(), counts, any)
        });
        for (gathered, counts, any) in all {
            assert_eq!(gathered, (0..size).map(|rank| vec![rank as u8; 3 * rank]).collect::<Vec<_>>());
            assert_eq!(counts, [(0..size as u64).sum(), u64::MAX / 8 * size as u64]);
            assert_eq!(any, size > 2);
        }
    }
}

#[test]
fn parts_of_any_length_make_the_whole() {
    for parts in [vec![0..7, 7..7], vec![0..3, 3..3, 3..MESSAGE], vec![0..0, 0..MESSAGE + 5, MESSAGE + 5..MESSAGE + 6]]
    {
        let whole: Vec<f32> = (0..parts.last().unwrap().end).map(|i| i as f32).collect();
        let done = on_ranks(parts.len(), |rank| {
            let own = parts[rank.rank()].clone();
            let mut values = vec![-1.0; whole.len()];
            values[own.clone()].copy_from_slice(&whole[own.clone()]);
            rank.gather_parts("parameters", &parts, &mut values).unwrap();
            (values, rank.collect_parts("moments", &parts, &whole[own]).unwrap())
        });
        for (rank, (completed, collected)) in done.into_iter().enumerate() {
            assert!(completed == whole, "{parts:?}");
            assert!(collected == if rank == 0 { whole.clone() } else { Vec::new() }, "{parts:?}");
        }
    }
}

/// Ranks that send and receive different numbers of messages.
#[test]
fn messages_of_any_length_arrive_whole() {
    for lens in [&[2 * MESSAGE + 5, 2 * MESSAGE + 5][..], &[3 * MESSAGE, 1, 0], &[1, 0, MESSAGE + 1, 7, 2 * MESSAGE]] {
        let content = |rank: usize| vec![rank as u8 + 1; lens[rank]];
        for all in on_ranks(lens.len(), |rank| {
            rank.set_timeout(Duration::from_secs(20));
            rank.gather("models", &content(rank.rank())).unwrap()
        }) {
            assert!((0..lens.len()).all(|rank| all[rank] == content(rank)), "{lens:?}");
        }
    }
}

#[test]
fn a_rank_that_is_late_or_gone_is_named() {
    let mut ranks = Communicator::threads(3);
    ranks[0].set_timeout(Duration::from_millis(20));
    let message = |rank: &Communicator, what| rank.gather(what, &[]).unwrap_err().to_string();
    assert_eq!(
        message(&ranks[0], "losses of step 8"),
        "rank 0, losses of step 8: rank 1 did not answer within 0.02 s; it may be stopped, or its network may be gone"
    );
    drop(ranks.remove(1));
    assert_eq!(message(&ranks[0], "stop"), "rank 0, stop: rank 1 has ended; its own message says why");
}
