//! Maps of fragments and swizzles of tiles, element by element.

use super::fragment::{Fragment, Holder, LANES, Load, wgmma_holder, wgmma_position};
use super::tile::{CHUNK, LINE, Swizzle, Tile};
use std::collections::BTreeSet;

#[test]
fn fragments_hold_every_element_once_and_find_its_holder() {
    for fragment in Fragment::ALL {
        let (rows, columns) = fragment.shape();
        let mut seen = BTreeSet::new();
        for holder in fragment.holders() {
            let (row, column) = fragment.position(holder);
            assert!(row < rows && column < columns, "{fragment:?}: {holder:?} holds ({row}, {column})");
            assert!(seen.insert((row, column)), "{fragment:?}: ({row}, {column}) is held twice");
            assert_eq!(fragment.holder(row, column), holder, "{fragment:?}: ({row}, {column})");
        }
        assert_eq!(seen.len() as u32, rows * columns, "{fragment:?}");
    }
}

/// The formulae as the manual writes them: element i of a lane, groupID = lane >> 2, threadID_in_group = lane % 4.
#[test]
fn fragments_are_those_of_the_manual() {
    for lane in 0..LANES {
        let (group, thread) = (lane >> 2, lane % 4);
        for i in 0..8 {
            let row = if i < 2 || (4..6).contains(&i) { group } else { group + 8 };
            let column = if i < 4 { thread * 2 + (i & 1) } else { thread * 2 + (i & 1) + 8 };
            let holder = Holder { lane, register: i / 2, half: i % 2 };
            assert_eq!(Fragment::A.position(holder), (row, column), "a{i} of lane {lane}");
        }
        for i in 0..4 {
            let row = if i < 2 { thread * 2 + (i & 1) } else { thread * 2 + (i & 1) + 8 };
            let holder = Holder { lane, register: i / 2, half: i % 2 };
            assert_eq!(Fragment::B.position(holder), (row, group), "b{i} of lane {lane}");
            let row = if i < 2 { group } else { group + 8 };
            let holder = Holder { lane, register: i, half: 0 };
            assert_eq!(Fragment::C.position(holder), (row, thread * 2 + (i & 1)), "c{i} of lane {lane}");
        }
    }
}

#[test]
fn sums_of_a_warpgroup_are_held_once_and_each_warp_has_sixteen_rows() {
    for columns in (8..=256).step_by(8) {
        let mut seen = BTreeSet::new();
        for thread in 0..128 {
            for register in 0..columns / 2 {
                let (row, column) = wgmma_position(thread, register);
                assert!(row < 64 && column < columns, "{thread} {register}: ({row}, {column}) of 64 x {columns}");
                assert_eq!(row / 16, thread / 32, "warp {} holds row {row}", thread / 32);
                assert!(seen.insert((row, column)), "({row}, {column}) is held twice");
                assert_eq!(wgmma_holder(row, column), (thread, register));
                // Eight columns at a time it is the fragment of `mma`.
                let holder = Holder { lane: thread % 32, register: register % 4, half: 0 };
                let (r, c) = Fragment::C.position(holder);
                assert_eq!((row % 16, column % 8), (r, c));
            }
        }
        assert_eq!(seen.len() as u32, 64 * columns);
    }
}

/// What `ldmatrix.x4` gives for the rows that `Load` names is the operand of `mma`: traced number by number.
#[test]
fn loads_give_the_operands_of_mma() {
    for load in [Load::A, Load::ATransposed, Load::B, Load::BTransposed] {
        for lane in 0..LANES {
            for register in 0..4 {
                for half in 0..2 {
                    // The manual: lane `8·matrix + row` names the row; the lane receives these two of matrix
                    // `register`.
                    let part = if load.transposes() { Fragment::Transposed } else { Fragment::Matrix };
                    let (row, column) = part.position(Holder { lane, register: 0, half });
                    let start = load.start(8 * register + row);
                    let (down, along) = (start.0, start.1 + column);
                    let holder = Holder { lane, register, half };
                    let found = match load {
                        Load::A => (down, along),
                        Load::ATransposed => (along, down),
                        Load::B => (down, along),
                        Load::BTransposed => (along, down),
                    };
                    let wanted = match load {
                        Load::A | Load::ATransposed => Fragment::A.position(holder),
                        Load::B | Load::BTransposed => {
                            let (k, n) = Fragment::B.position(Holder { register: register % 2, ..holder });
                            (k, n + 8 * (register / 2))
                        }
                    };
                    assert_eq!(found, wanted, "{load:?}: lane {lane}, register {register}, half {half}");
                }
            }
        }
    }
}

/// Tiles of all widths that kernels use, with every swizzle that fits.
fn tiles() -> Vec<Tile> {
    let mut all = Vec::new();
    for rows in [8, 16, 64, 128] {
        all.extend([16, 32, 64, 128, 256].map(|columns| Tile::of_halves(rows, columns)));
        all.extend([32, 64, 128, 256].map(|columns| Tile::new(rows, columns, 4, Swizzle::Reversed)));
        all.extend([8, 24, 64].map(|columns| Tile::new(rows, columns, 2, Swizzle::None)));
    }
    all
}

#[test]
fn tiles_put_every_element_in_a_place_of_its_own_and_find_it_again() {
    for tile in tiles() {
        let mut seen = BTreeSet::new();
        for row in 0..tile.rows {
            for column in 0..tile.columns {
                let offset = tile.offset(row, column);
                assert!(offset + tile.element <= tile.bytes(), "{tile:?}: ({row}, {column}) lies at {offset}");
                assert!(seen.insert(offset), "{tile:?}: two numbers at {offset}");
                assert_eq!(tile.at(offset), (row, column), "{tile:?}");
                let chunk = CHUNK / tile.element;
                let begin = tile.offset(row, column / chunk * chunk);
                assert_eq!(offset, begin + column % chunk * tile.element, "{tile:?}: a chunk is torn");
            }
        }
    }
}

#[test]
fn steps_lead_where_the_tile_says() {
    for tile in tiles() {
        let chunk = CHUNK / tile.element;
        for rows in (0..tile.rows).step_by(8) {
            for columns in (0..tile.columns).step_by(chunk as usize) {
                let step = tile.step(rows, columns);
                for row in 0..tile.rows - rows {
                    for column in (0..tile.columns - columns).step_by(chunk as usize) {
                        let carries = (column * tile.element % LINE) & (columns * tile.element % LINE) != 0;
                        if carries && tile.swizzle != Swizzle::None {
                            continue;
                        }
                        let found = (tile.offset(row, column) ^ step.flip).wrapping_add_signed(step.add);
                        let wanted = tile.offset(row + rows, column + columns);
                        assert_eq!(found, wanted, "{tile:?}: ({row}, {column}) + ({rows}, {columns}) by {step:?}");
                    }
                }
            }
        }
    }
}

/// Accesses of the busiest bank, for groups of lanes that are served together.
fn conflicts(starts: &[u32], bytes: u32) -> u32 {
    let lanes = (LINE / bytes) as usize;
    let group = |starts: &[u32]| {
        let mut asked = [0; 32];
        let words: BTreeSet<u32> = starts.iter().flat_map(|s| (0..bytes / 4).map(move |w| s / 4 + w)).collect();
        words.iter().for_each(|word| asked[*word as usize % 32] += 1);
        asked.into_iter().max().unwrap_or(0)
    };
    starts.chunks(lanes).map(group).max().unwrap_or(0)
}

#[test]
fn ldmatrix_is_free_of_bank_conflicts_in_a_tile_of_halves() {
    for columns in [16, 32, 64, 128, 256] {
        let tile = Tile::of_halves(64, columns);
        for load in [Load::A, Load::ATransposed, Load::B, Load::BTransposed] {
            for (down, along) in (0..48).step_by(16).flat_map(|d| (0..columns).step_by(16).map(move |a| (d, a))) {
                let starts: Vec<u32> = (0..LANES)
                    .map(|lane| {
                        let (row, column) = load.start(lane);
                        tile.offset(row + down, column + along)
                    })
                    .collect();
                assert_eq!(conflicts(&starts, CHUNK), 1, "{load:?} at ({down}, {along}) of {tile:?}");
            }
        }
    }
    let plain = Tile::new(64, 64, 2, Swizzle::None);
    let starts: Vec<u32> = (0..LANES).map(|lane| plain.offset(lane, 0)).collect();
    assert_eq!(conflicts(&starts, CHUNK), 8, "without a swizzle eight rows meet in one bank");
}
