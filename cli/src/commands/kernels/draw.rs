//! `albert kernels draw`: layouts and schedules as SVG. Fragments and swizzles come from the functions that kernels and simulator use,
//! a packing from a packed matrix, tiles from the constants of the kernels. A pipeline is a model with those constants.

use crate::output::{results, tell};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use engine::io::{check_output, write_atomically};
use kernels::{
    Cpu, Isa, IsaKind,
    gemm::{Layout, PackedB, RegisterTile},
};
use kernels_cuda::gemm::tiles::{Blocking, HopperTile, KernelSchedule};
use ptx::{
    fragment::{element_of_a, element_of_b, element_of_c, element_of_d, element_of_matrix},
    tile::{CHUNK, LINE, Swizzle, Tile},
};
use std::{fmt::Write as _, io::Write as _, path::PathBuf, process::ExitCode};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Kind of drawing
    kind: Kind,
    /// Fragment: mma-a, mma-b, mma-c, ldmatrix-x4, wgmma-d. Swizzle: bytes of a row (32, 64, 128) or accumulators. Tile: an
    /// instruction set or a GPU tile. Packing: an instruction set of this machine. Pipeline: a tile for Hopper
    name: String,
    /// SVG file [default: standard output]
    #[arg(long, short)]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Accumulators of a CPU kernel, or the warps of a GPU tile
    Tile,
    /// Lane and register of each element of a matrix instruction
    Fragment,
    /// Position of each 16-byte chunk of a tile in shared memory
    Swizzle,
    /// Position of each element of a packed B in memory
    Packing,
    /// Loads and products of the stages of a GPU product over time
    Pipeline,
}

const HOPPER: [(&str, HopperTile); 3] =
    [("wide", HopperTile::WIDE), ("ping-pong", HopperTile::PING_PONG), ("square", HopperTile::SQUARE)];
const AMPERE: [(&str, Blocking); 5] = [
    ("deep", Blocking::DEEP),
    ("large", Blocking::LARGE),
    ("middle", Blocking::MIDDLE),
    ("small", Blocking::SMALL),
    ("single", Blocking::SINGLE),
];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(output) = &arguments.output {
        check_output(output)?;
    }
    let name = arguments.name.as_str();
    let drawing = match arguments.kind {
        Kind::Fragment => fragment(name)?,
        Kind::Swizzle => swizzle(name)?,
        Kind::Tile => tile(name)?,
        Kind::Packing => packing(name)?,
        Kind::Pipeline => pipeline(find("tile for Hopper", &HOPPER, name)?),
    };
    let svg = drawing.svg();
    match &arguments.output {
        None => write!(results(), "{svg}")?,
        Some(output) => {
            write_atomically(output, |file| file.write_all(svg.as_bytes()))?;
            tell!("wrote {}", output.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Value called `name`, or an error that lists all names.
fn find<T: Copy>(what: &str, all: &[(&str, T)], name: &str) -> Result<T> {
    match all.iter().find(|(known, _)| *known == name) {
        Some((_, value)) => Ok(*value),
        None => {
            let names: Vec<&str> = all.iter().map(|(known, _)| *known).collect();
            bail!("no {what} `{name}`; expected one of: {}", names.join(", "))
        }
    }
}

/// Rectangles with text on a grid of cells, in one of eight colors.
struct Drawing {
    title: String,
    /// Width and height of a cell, pixels.
    cell: [usize; 2],
    /// Columns and rows.
    size: [usize; 2],
    body: String,
}

/// Pixels around the grid.
const MARGIN: usize = 30;

impl Drawing {
    fn new(title: impl Into<String>, cell: [usize; 2]) -> Self {
        Self { title: title.into(), cell, size: [0, 0], body: String::new() }
    }

    /// Draws `text` in the cells of `columns` and `rows`: (first, number).
    fn put(&mut self, columns: (usize, usize), rows: (usize, usize), color: usize, text: &str) {
        let [width, height] = self.cell;
        let (x, y) = (MARGIN + columns.0 * width, 2 * MARGIN + rows.0 * height);
        let (w, h) = (columns.1 * width, rows.1 * height);
        let (tx, ty) = (x + w / 2, y + h / 2 + 4);
        self.size = [self.size[0].max(columns.0 + columns.1), self.size[1].max(rows.0 + rows.1)];
        let rectangle = format!("<rect class=\"c{}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"/>", color % 8);
        let _ = writeln!(self.body, "{rectangle}<text x=\"{tx}\" y=\"{ty}\">{text}</text>");
    }

    /// Draws `text` without a rectangle.
    fn label(&mut self, column: usize, row: usize, text: &str) {
        let [width, height] = self.cell;
        let (x, y) = (MARGIN + column * width + width / 2, 2 * MARGIN + row * height + height / 2 + 4);
        self.size = [self.size[0].max(column + 1), self.size[1].max(row + 1)];
        let _ = writeln!(self.body, "<text class=\"label\" x=\"{x}\" y=\"{y}\">{text}</text>");
    }

    fn svg(&self) -> String {
        let [width, height] = [0, 1].map(|axis| 2 * MARGIN + self.cell[axis] * self.size[axis] + axis * MARGIN);
        let colors = |[saturation, lightness]: [usize; 2]| {
            let color = |i: usize| format!(".c{i}{{fill:hsl({} {saturation}% {lightness}%)}}", 45 * i);
            (0..8).map(color).collect::<String>()
        };
        let (title, body, light, dark) = (&self.title, &self.body, colors([70, 86]), colors([45, 28]));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"11\" text-anchor=\"middle\">\n<title>{title}</title>\n\
             <style>rect{{stroke:#57606a}}text{{fill:#1f2328}}.label{{fill:#57606a}}{light}\
             @media (prefers-color-scheme:dark){{rect{{stroke:#8b949e}}text{{fill:#e6edf3}}.label{{fill:#8b949e}}{dark}}}</style>\n\
             <text x=\"{}\" y=\"22\" font-size=\"14\">{title}</text>\n{body}</svg>\n",
            width / 2
        )
    }
}

fn fragment(name: &str) -> Result<Drawing> {
    /// Title; lanes, registers and values of a register; row and column of each.
    type Fragment = (&'static str, [usize; 3], fn(usize, usize, usize) -> (usize, usize));
    let all: [(&str, Fragment); 5] = [
        ("mma-a", ("A [16 rows, 16 k] of mma.m16n8k16: lane, register", [32, 4, 2], element_of_a)),
        ("mma-b", ("B [16 k, 8 columns] of mma.m16n8k16: lane, register", [32, 2, 2], element_of_b)),
        ("mma-c", ("C [16, 8] of mma.m16n8k16: lane, register", [32, 4, 1], |lane, r, _| element_of_c(lane, r))),
        (
            "ldmatrix-x4",
            ("the four matrices of ldmatrix.x4: lane, register", [32, 4, 2], |lane, register, value| {
                let (row, column) = element_of_matrix(lane, value);
                (row, 8 * register + column)
            }),
        ),
        ("wgmma-d", ("D [64, 16] of wgmma.m64n16: thread, register", [128, 8, 1], |lane, r, _| element_of_d(lane, r))),
    ];
    let (title, [lanes, registers, values], place) = find("fragment", &all, name)?;
    let mut drawing = Drawing::new(title, [62, 20]);
    for lane in 0..lanes {
        for register in 0..registers {
            for value in 0..values {
                let (row, column) = place(lane, register, value);
                drawing.put((column + 1, 1), (row + 1, 1), lane / 4, &format!("{lane}: r{register}"));
                drawing.label(column + 1, 0, &column.to_string());
                drawing.label(0, row + 1, &row.to_string());
            }
        }
    }
    Ok(drawing)
}

fn swizzle(name: &str) -> Result<Drawing> {
    let all = [
        ("32", Tile::of_halves(8, 16)),
        ("64", Tile::of_halves(8, 32)),
        ("128", Tile::of_halves(8, 64)),
        ("accumulators", Tile::new(8, 32, 4, Swizzle::Reversed)),
    ];
    let tile = find("swizzle", &all, name)?;
    let title = format!("row, chunk of 16 bytes in each place of shared memory; rows of {} bytes", tile.pitch());
    let mut drawing = Drawing::new(title, [70, 24]);
    for place in 0..tile.bytes() / CHUNK {
        let (row, column) = tile.at(place * CHUNK);
        let (line, slot) = ((place * CHUNK / LINE) as usize, (place % (LINE / CHUNK)) as usize);
        let chunk = column * tile.element / CHUNK;
        drawing.put((slot + 1, 1), (line + 1, 1), chunk as usize, &format!("{row}, {chunk}"));
        drawing.label(slot + 1, 0, &format!("banks {}-{}", 4 * slot, 4 * slot + 3));
        drawing.label(0, line + 1, &format!("byte {}", line * LINE as usize));
    }
    Ok(drawing)
}

fn tile(name: &str) -> Result<Drawing> {
    if let Some((_, tile)) = HOPPER.iter().find(|(known, _)| *known == name) {
        return Ok(hopper_tile(*tile));
    }
    if let Some((_, blocking)) = AMPERE.iter().find(|(known, _)| *known == name) {
        let Blocking { m, n, warps, .. } = *blocking;
        let mut drawing =
            Drawing::new(format!("tile {m} x {n} of C: the warps of a block"), [n as usize / 2, m as usize / 2]);
        drawing.cell = drawing.cell.map(|pixels| 4 * pixels / warps.0.max(warps.1) as usize);
        for (row, column) in (0..warps.0).flat_map(|row| (0..warps.1).map(move |column| (row, column))) {
            let warp = row * warps.1 + column;
            drawing.put((column as usize, 1), (row as usize, 1), warp as usize, &format!("warp {warp}"));
        }
        return Ok(drawing);
    }
    let kinds: Vec<(&str, IsaKind)> = IsaKind::ALL.iter().map(|kind| (kind.name(), *kind)).collect();
    let names: Vec<&str> = HOPPER.iter().map(|tile| tile.0).chain(AMPERE.iter().map(|tile| tile.0)).collect();
    let kind = find(&format!("GPU tile ({}) or instruction set", names.join(", ")), &kinds, name)?;
    let (lanes, RegisterTile { rows, vectors }) = (kind.lanes(), RegisterTile::of_lanes(kind.lanes()));
    let title = format!("tile {rows} x {} of C: accumulators, vectors of {lanes} f32", vectors * lanes);
    let mut drawing = Drawing::new(title, [160, 22]);
    for (row, vector) in (0..rows).flat_map(|row| (0..vectors).map(move |vector| (row, vector))) {
        drawing.put((vector, 1), (row, 1), row, &format!("accumulator {}", row * vectors + vector));
    }
    Ok(drawing)
}

fn hopper_tile(tile: HopperTile) -> Drawing {
    let rows = (HopperTile::M / 16) as usize;
    let title = format!("tile {} x {} of C: warps of the consumers, 16 rows each", HopperTile::M, tile.n);
    let mut drawing = Drawing::new(title, [2 * tile.n as usize, 28]);
    for row in 0..rows {
        let text = match tile.schedule {
            KernelSchedule::Cooperative => format!("consumer {}, warp {}", row / 4, row % 4),
            KernelSchedule::PingPong => format!("consumer of this tile (0 and 1 alternate), warp {}", row % 4),
        };
        drawing.put((0, 1), (row, 1), row, &text);
    }
    drawing
}

fn packing(name: &str) -> Result<Drawing> {
    let here: Vec<(&str, Isa)> = Isa::real().into_iter().map(|isa| (isa.kind().name(), isa)).collect();
    let isa = find("instruction set of this machine", &here, name)?;
    let nr = RegisterTile::of_lanes(isa.kind().lanes()).vectors * isa.kind().lanes();
    let (k, n) = (4, 2 * nr - nr / 4);
    let numbers: Vec<f32> = (0..k * n).map(|i| i as f32).collect();
    let mut packed = PackedB::new(isa, k, n);
    packed.pack(&Cpu::new(isa, 1)?, Layout::Normal, n, &numbers);
    let title = format!("B [{k}, {n}] packed for {name}: place of each element in memory, panels of {nr} columns");
    let mut drawing = Drawing::new(title, [30, 24]);
    // Padding zeros look like element 0, but follow the last column of a row of the last panel, so element 0 comes first.
    let mut seen = vec![false; k * n];
    for (place, &number) in packed.floats().iter().enumerate() {
        let at = number as usize;
        if !std::mem::replace(&mut seen[at], true) {
            let (row, column) = (at / n, at % n);
            drawing.put((column + 1, 1), (row + 1, 1), 3 * (column / nr), &place.to_string());
            drawing.label(column + 1, 0, &column.to_string());
            drawing.label(0, row + 1, &format!("k {row}"));
        }
    }
    Ok(drawing)
}

/// Assumed time of a load in cycles, from request to the last byte. It is not measured: it shows that loads overlap.
const LOAD: u32 = 900;
/// Cycles of a column.
const COLUMN: u32 = 128;

/// Two rounds of a pipeline whose stages are loaded as soon as they are released, and the first k-tile of the third.
fn pipeline(tile: HopperTile) -> Drawing {
    let (stages, product) = (tile.stages as usize, tile.k_tile_cycles());
    let title = format!(
        "{stages} stages, k-tiles of {} x {} x {}: loads by TMA, an assumed {LOAD} cycles (p: parity of the wait), then products",
        HopperTile::M,
        tile.n,
        HopperTile::K
    );
    let mut drawing = Drawing::new(title, [14, 26]);
    let (mut released, mut free) = (vec![0; stages], 0);
    for k_tile in 0..=2 * stages {
        let stage = k_tile % stages;
        let loaded = released[stage] + LOAD;
        let begin = free.max(loaded);
        free = begin + product;
        // The next product is in flight when the stage of this one is released.
        released[stage] = free;
        let span = |from: u32, to: u32| ((from / COLUMN + 5) as usize, ((to - from) / COLUMN).max(1) as usize);
        let parity = k_tile / stages % 2;
        drawing.put(span(loaded - LOAD, loaded), (2 * stage + 1, 1), k_tile, &format!("load {k_tile} p{parity}"));
        drawing.put(span(begin, free), (2 * stage + 2, 1), k_tile, &format!("multiply {k_tile}"));
        drawing.label(1, 2 * stage + 1, &format!("stage {stage}"));
    }
    for column in (5..drawing.size[0]).step_by(16) {
        drawing.label(column, 0, &format!("{} cycles", (column as u32 - 5) * COLUMN));
    }
    drawing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(drawing: &Drawing) -> usize {
        drawing.body.lines().filter(|line| line.starts_with("<rect")).count()
    }

    #[test]
    fn drawings_have_a_cell_for_each_element() {
        for (name, elements) in
            [("mma-a", 256), ("mma-b", 128), ("mma-c", 128), ("ldmatrix-x4", 256), ("wgmma-d", 1024)]
        {
            assert_eq!(cells(&fragment(name).unwrap()), elements, "{name}");
        }
        for (name, chunks) in [("32", 16), ("64", 32), ("128", 64), ("accumulators", 64)] {
            assert_eq!(cells(&swizzle(name).unwrap()), chunks, "{name}");
        }
        assert_eq!(cells(&packing("scalar").unwrap()), 4 * 14);
        for (name, tile) in HOPPER {
            assert_eq!(cells(&super::tile(name).unwrap()), 8);
            assert_eq!(cells(&pipeline(tile)), 2 * (2 * tile.stages as usize + 1));
        }
        assert_eq!([cells(&tile("deep").unwrap()), cells(&tile("avx512").unwrap())], [8, 28]);
        let error = tile("big").map(|_| ()).unwrap_err().to_string();
        assert!(["no GPU tile", "wide", "avx2"].iter().all(|part| error.contains(part)), "{error}");
    }
}
