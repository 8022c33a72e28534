//! `wgmma`: layouts of both operands written out a second time, and every rule broken once.

use super::*;
use half::{bf16, f16};

fn value(i: usize, j: usize) -> f32 {
    ((i * 5 + j * 11) % 13) as f32 - 6.0
}

/// Offset in bytes of element (r, k) of a matrix of half-words, as a tiler would place it: `rows` along M or N.
#[derive(Clone, Copy, Debug)]
struct Layout {
    span: usize,
    transposed: bool,
    rows: usize,
}

impl Layout {
    /// Byte of (r, k) for 16 values along K.
    fn byte(self, r: usize, k: usize) -> usize {
        let linear = match (self.transposed, self.span) {
            // Core matrices of 8 × 16 bytes, those along K first.
            (false, 0) => (r / 8 * 2 + k / 8) * 128 + r % 8 * 16 + k % 8 * 2,
            (true, 0) => (k / 8 * (self.rows / 8) + r / 8) * 128 + k % 8 * 16 + r % 8 * 2,
            // Lines of `span` bytes along the contiguous dimension.
            (false, span) => r * span + k * 2,
            (true, span) => r / (span / 2) * (16 * span) + k * span + r % (span / 2) * 2,
        };
        let mask = [0, 1, 3, 7][[0, 32, 64, 128].iter().position(|span| *span == self.span).expect("a span")];
        linear ^ ((linear / 128) & mask) << 4
    }

    /// Leading and stride offsets in bytes, and the mode.
    fn descriptor(self) -> u64 {
        let mode = [0, 128, 64, 32].iter().position(|span| *span == self.span).expect("a span");
        let (leading, stride) = match (self.transposed, self.span) {
            (false, 0) => (128, 256),
            (true, 0) => (self.rows / 8 * 128, 128),
            (false, span) => (16, 8 * span),
            (true, span) => (16 * span, 8 * span),
        };
        (leading as u64 >> 4) << 16 | (stride as u64 >> 4) << 32 | (mode as u64) << 62
    }
}

struct Problem {
    n: usize,
    half: bool,
    a: Option<Layout>,
    b: Layout,
    fence: &'static str,
    commit: &'static str,
    wait: &'static str,
    proxy: &'static str,
    /// Stands between the product and the wait.
    between: &'static str,
    guard: &'static str,
}

impl Problem {
    fn new(n: usize, a: Option<Layout>, b: Layout) -> Self {
        let fence = "wgmma.fence.sync.aligned;";
        let (commit, wait) = ("wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;");
        Problem { n, half: false, a, b, fence, commit, wait, proxy: "fence.proxy.async;", between: "", guard: "" }
    }

    fn short(&self, x: f32) -> u16 {
        if self.half { f16::from_f32(x).to_bits() } else { bf16::from_f32(x).to_bits() }
    }

    fn text(&self) -> String {
        let (n, ty) = (self.n, if self.half { "f16" } else { "bf16" });
        let list = (0..n / 2).map(|i| format!("%f{i}")).collect::<Vec<_>>().join(", ");
        let zeros: String = (0..n / 2).map(|i| format!("mov.f32 %f{i}, 0f3F800000;")).collect();
        let stores: String = (0..n / 2).map(|i| format!("st.global.f32 [%d0+{}], %f{i};\n", 512 * i)).collect();
        let (a, source, flag) = match self.a {
            Some(layout) => (layout.descriptor(), "%d2", ["0, ", "1, "][usize::from(layout.transposed)]),
            None => (0, "{%r4, %r5, %r6, %r7}", ""),
        };
        let flags = format!("{flag}{}", u8::from(self.b.transposed));
        let Problem { fence, commit, wait, proxy, between, guard, .. } = self;
        format!(
            ".version 8.7\n.target sm_90a\n.address_size 64\n.extern .shared .align 128 .b8 smem[];\n\
             .visible .entry kernel(.param .u64 image, .param .u64 fragments, .param .u64 y)\n.reqntid 128\n{{\n\
             .reg .b64 %d<8>, %image, %fragments; .reg .b32 %t, %r<16>; .reg .f32 %f<128>; .reg .pred %p<4>;\n\
             ld.param.u64 %image, [image]; ld.param.u64 %fragments, [fragments]; ld.param.u64 %d0, [y]; mov.u32 %t, %tid.x;\n\
             mad.wide.u32 %d0, %t, 4, %d0; mad.wide.u32 %d1, %t, 16, %fragments; ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%d1];\n\
             mov.u32 %r0, smem; mad.lo.u32 %r1, %t, 4, %r0; mad.wide.u32 %image, %t, 4, %image; mov.u32 %r2, 0;\n\
             $copy: ld.global.b32 %r3, [%image]; st.shared.b32 [%r1], %r3; add.u64 %image, %image, 512; add.u32 %r1, %r1, 512;\n\
             add.u32 %r2, %r2, 1; setp.lt.u32 %p0, %r2, 32; @%p0 bra $copy;\n{proxy} bar.sync 0;\n\
             shr.u32 %r8, %r0, 4; cvt.u64.u32 %d2, %r8; add.u32 %r9, %r0, 8192; shr.u32 %r9, %r9, 4; cvt.u64.u32 %d3, %r9;\n\
             or.b64 %d2, %d2, {a}; or.b64 %d3, %d3, {};\n{zeros}\n{fence}\nsetp.lt.u32 %p1, %t, 96;\n\
             {guard} wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ty}.{ty} {{{list}}}, {source}, %d3, 1, 1, 1, {flags};\n\
             {commit}\n{between}\n{wait}\n{stores}ret;\n}}\n",
            self.b.descriptor()
        )
    }

    fn run(&self, options: &Options) -> (Report, Vec<f32>) {
        let mut image = vec![0_u16; 8192];
        for k in 0..16 {
            if let Some(layout) = self.a {
                (0..64).for_each(|r| image[layout.byte(r, k) / 2] = self.short(value(r, k)));
            }
            (0..self.n).for_each(|c| image[4096 + self.b.byte(c, k) / 2] = self.short(value(c + 3, k)));
        }
        let fragments: Vec<u32> = (0..512)
            .map(|i| {
                let (thread, register) = (i / 4, i % 4);
                let row = 16 * (thread / 32) + thread % 32 / 4 + 8 * (register % 2);
                let column = 2 * (thread % 4) + 8 * (register / 2);
                u32::from(self.short(value(row, column))) | u32::from(self.short(value(row, column + 1))) << 16
            })
            .collect();
        let mut memory = Memory::new();
        let (image, fragments) = (memory.allocate_from("image", &image), memory.allocate_from("fragments", &fragments));
        let y = memory.allocate("y", 4 * 64 * self.n);
        let blocks = Launch { grid: [1, 1, 1], block: [128, 1, 1], shared_bytes: 16384 };
        let arguments = [image, fragments, y].map(Argument::U64);
        let report = launch(&self.text(), blocks, &arguments, &mut memory, options);
        (report, words_of(&memory, y).into_iter().map(f32::from_bits).collect())
    }

    #[track_caller]
    fn agrees(&self) {
        let schedules = [Schedule::RoundRobin, Schedule::Random(1), Schedule::Adversarial(1)];
        let some = settings().filter(|options| schedules.contains(&options.schedule));
        let at = format!("{:?} {:?} n {}", self.a, self.b, self.n);
        let y = agree(some, &at, |options| self.run(options));
        for thread in 0..128 {
            for register in 0..self.n / 2 {
                // The manual's figure of D: rows by thread, pairs of columns by register.
                let row = thread / 32 * 16 + thread % 32 / 4 + if register % 4 > 1 { 8 } else { 0 };
                let column = register / 4 * 8 + thread % 4 * 2 + register % 2;
                let wanted: f32 = 1.0 + (0..16).map(|k| value(row, k) * value(column + 3, k)).sum::<f32>();
                assert_eq!(y[128 * register + thread], wanted, "{at}: row {row}, column {column}");
            }
        }
    }

    #[track_caller]
    fn found(&self, kind: FindingKind) -> String {
        found(completions(), &self.text(), kind, |options| self.run(options))
    }
}

fn k_major(span: usize, rows: usize) -> Layout {
    Layout { span, transposed: false, rows }
}

#[test]
fn products_read_every_layout() {
    for span in [0, 32, 64, 128] {
        Problem::new(64, Some(k_major(span, 64)), k_major(span, 64)).agrees();
        let b = Layout { span, transposed: true, rows: 64 };
        Problem::new(64, Some(k_major(128, 64)), b).agrees();
        let a = Layout { span, transposed: true, rows: 64 };
        Problem::new(64, Some(a), k_major(64, 64)).agrees();
        Problem::new(64, None, b).agrees();
    }
    Problem::new(8, None, k_major(32, 8)).agrees();
    Problem::new(128, Some(k_major(32, 64)), Layout { span: 128, transposed: true, rows: 128 }).agrees();
    Problem { half: true, ..Problem::new(24, None, k_major(0, 24)) }.agrees();
}

#[test]
fn products_without_their_rules_are_found() {
    let good = || Problem::new(16, None, k_major(64, 16));
    good().agrees();
    Problem { fence: "", ..good() }.found(FindingKind::Fence);
    Problem { fence: "wgmma.fence.sync.aligned; mov.f32 %f3, 0f3F800000;", ..good() }.found(FindingKind::Fence);
    Problem { fence: "wgmma.fence.sync.aligned; mov.b32 %r5, %r6;", ..good() }.found(FindingKind::Fence);
    let message = Problem { wait: "", ..good() }.found(FindingKind::Pending);
    assert!(message.contains("register %f0"), "{message}");
    Problem { wait: "", ..good() }.found(FindingKind::Unfinished);
    Problem { wait: "wgmma.wait_group.sync.aligned 1;", ..good() }.found(FindingKind::Pending);
    Problem { commit: "", ..good() }.found(FindingKind::Pending);
    Problem { between: "mov.b32 %r4, %t;", ..good() }.found(FindingKind::Pending);
    Problem { proxy: "", ..good() }.found(FindingKind::Proxy);
    Problem { proxy: "fence.proxy.async.shared::cta;", ..good() }.agrees();
    Problem { proxy: "fence.proxy.async.global;", ..good() }.found(FindingKind::Proxy);
    // Lane 0 alone knows of its write; all lanes read the operand.
    let with_a = || Problem::new(16, Some(k_major(64, 64)), k_major(64, 16));
    let write =
        "setp.eq.u32 %p2, %t, 0; @%p2 ld.shared.b32 %r3, [%r0]; @%p2 st.shared.b32 [%r0], %r3; @%p2 fence.proxy.async;";
    let after = |sync: &str| format!("{write} {sync} wgmma.fence.sync.aligned;").leak() as &'static str;
    Problem { fence: after("bar.warp.sync -1;"), ..with_a() }.agrees();
    Problem { fence: after(""), ..with_a() }.found(FindingKind::Race);
    // The operand is overwritten before the product has read it.
    let reuse = "bar.sync 0; setp.eq.u32 %p2, %t, 0; add.u32 %r9, %r0, 8192; @%p2 st.shared.u32 [%r9], %t;";
    Problem { between: reuse, ..good() }.found(FindingKind::Race);
    let three = Problem { guard: "@%p1", ..good() };
    let (report, _) = three.run(&Options::default());
    assert!(report.has(FindingKind::Divergence), "{:?}", report.findings);
}
