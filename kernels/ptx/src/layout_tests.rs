//! Swizzles of tiles, element by element.

use super::fragment::{LANES, Load, element_of_a, element_of_b, element_of_c, element_of_d, element_of_matrix};
use super::tile::{CHUNK, LINE, Swizzle, Tile};
use std::collections::BTreeSet;

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

#[test]
fn fragments_are_those_of_the_manual() {
    // The formulas of the PTX manual for element i of a lane, "Matrix Fragments for mma.m16n8k16 with floating point type".
    for lane in 0..32 {
        let (group, in_group) = (lane >> 2, lane % 4);
        for i in 0..8 {
            let row = if i < 2 || (4..6).contains(&i) { group } else { group + 8 };
            let column = if i < 4 { in_group * 2 + (i & 1) } else { in_group * 2 + (i & 1) + 8 };
            assert_eq!(element_of_a(lane, i / 2, i % 2), (row, column), "a{i} of lane {lane}");
        }
        for i in 0..4 {
            let row = if i < 2 { in_group * 2 + (i & 1) } else { in_group * 2 + (i & 1) + 8 };
            assert_eq!(element_of_b(lane, i / 2, i % 2), (row, group), "b{i} of lane {lane}");
            let row = if i < 2 { group } else { group + 8 };
            assert_eq!(element_of_c(lane, i), (row, in_group * 2 + (i & 1)), "c{i} of lane {lane}");
        }
    }
    // Read off the figure of D of wgmma.m64nNk16, and of the fragment of ldmatrix.
    let of_d = [
        (0, 0, (0, 0)),
        (0, 1, (0, 1)),
        (0, 2, (8, 0)),
        (0, 4, (0, 8)),
        (3, 1, (0, 7)),
        (4, 0, (1, 0)),
        (31, 3, (15, 7)),
        (32, 0, (16, 0)),
        (96, 2, (56, 0)),
        (127, 7, (63, 15)),
    ];
    for (thread, register, place) in of_d {
        assert_eq!(element_of_d(thread, register), place, "d{register} of thread {thread}");
    }
    for (lane, value, place) in [(0, 0, (0, 0)), (0, 1, (0, 1)), (3, 1, (0, 7)), (4, 0, (1, 0)), (31, 1, (7, 7))] {
        assert_eq!(element_of_matrix(lane, value), place, "lane {lane}");
    }
}
