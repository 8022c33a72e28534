//! Lesson 4: loops of a matrix product, in an order that suits a cache.

/// Rows and columns of each matrix.
pub(crate) const N: usize = 64;

/// C += A·B, element by element.
fn exercise(machine: &mut Machine) {
    // The gap: B is read down a column, a cache line for each element, which is replaced before its neighbors are read.
    for i in 0..N {
        for j in 0..N {
            for p in 0..N {
                machine.multiply_add(i, j, p);
            }
        }
    }
}

/// Matrices of 4 cache lines a row, and a cache of 64 lines, of which the least recently used is replaced.
#[derive(Default)]
pub(crate) struct Machine {
    c: Vec<u64>,
    /// Matrix, row and part of the row of each line in the cache, the most recently used last.
    cache: Vec<(char, usize, usize)>,
    loads: usize,
}

impl Machine {
    /// C[i, j] += A[i, p]·B[p, j]
    pub(crate) fn multiply_add(&mut self, i: usize, j: usize, p: usize) {
        for (matrix, row, column) in [('a', i, p), ('b', p, j), ('c', i, j)] {
            let line = (matrix, row, column / 16);
            match self.cache.iter().rposition(|cached| *cached == line) {
                Some(at) => self.cache[at..].rotate_left(1),
                None => {
                    self.loads += 1;
                    self.cache.push(line);
                    if self.cache.len() > 64 {
                        self.cache.remove(0);
                    }
                }
            }
        }
        self.c[i * N + j] += a(i, p) * b(p, j);
    }
}

fn a(i: usize, p: usize) -> u64 {
    (7 * i + 3 * p) as u64 % 11
}

fn b(p: usize, j: usize) -> u64 {
    (5 * p + 2 * j) as u64 % 13
}

pub(crate) fn check(product: fn(&mut Machine)) {
    let mut machine = Machine { c: vec![0; N * N], ..Machine::default() };
    product(&mut machine);
    for (i, j) in (0..N).flat_map(|i| (0..N).map(move |j| (i, j))) {
        let (c, expected) = (machine.c[i * N + j], (0..N).map(|p| a(i, p) * b(p, j)).sum::<u64>());
        assert_eq!(c, expected, "C[{i}, {j}]");
    }
    assert!(machine.loads <= 4000, "{} cache lines loaded; expected at most 4000", machine.loads);
}

exercise_tests!(check(exercise), "262656 cache lines loaded; expected at most 4000");
