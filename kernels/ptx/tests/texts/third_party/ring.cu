// A GEMM as one would write it for sm_90a in CUDA C++ with inline PTX: one warpgroup brings tiles through a ring of
// mbarriers, two multiply them. C [M, N] f32 = A [M, K] · B [N, K]ᵀ, A and B bf16; a block makes 128 × 64 of C.

#include <cstdint>

constexpr int STAGES = 3, TILE_M = 128, TILE_N = 64, TILE_K = 64;
constexpr uint32_t A_BYTES = TILE_M * TILE_K * 2, B_BYTES = TILE_N * TILE_K * 2, STAGE_BYTES = A_BYTES + B_BYTES;

struct alignas(64) Map { char opaque[128]; };

__device__ uint32_t address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ void wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}"
                 ::"r"(barrier), "r"(parity) : "memory");
}

__device__ void load(uint32_t to, const Map* map, int column, int row, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

// 128-byte swizzle, K-major, groups of 8 rows 1024 bytes apart.
__device__ uint64_t descriptor(uint32_t at) { return (uint64_t)(at >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

#define PRODUCT(offset)                                                                                                  \
    "add.u64 a, %32, " offset "; add.u64 b, %33, " offset ";\n"                                                          \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "      \
    "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, a, b, 1, 1, 1, 0, 0;\n"

__device__ void multiply(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile("{\n.reg .b64 a, b;\nwgmma.fence.sync.aligned;\n" PRODUCT("0") PRODUCT("2") PRODUCT("4") PRODUCT("6")
                 "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "l"(a), "l"(b) : "memory");
}

extern "C" __global__ void __launch_bounds__(384) ring(const __grid_constant__ Map a, const __grid_constant__ Map b, float* c, int n, int k) {
    extern __shared__ __align__(1024) char stages[];
    __shared__ alignas(8) uint64_t full[STAGES], empty[STAGES];
    int group = threadIdx.x / 128, steps = k / TILE_K;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full[s])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 8;" ::"r"(address(&empty[s])));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            for (int step = 0; step < steps; step++) {
                int s = step % STAGES, round = step / STAGES;
                wait(address(&empty[s]), (round & 1) ^ 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&full[s])), "r"(STAGE_BYTES) : "memory");
                uint32_t at = address(stages) + s * STAGE_BYTES;
                load(at, &a, step * TILE_K, blockIdx.x * TILE_M, address(&full[s]));
                load(at + A_BYTES, &b, step * TILE_K, blockIdx.y * TILE_N, address(&full[s]));
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float d[32];
    for (int i = 0; i < 32; i++) d[i] = 0.0f;
    for (int step = 0; step < steps; step++) {
        int s = step % STAGES, round = step / STAGES;
        wait(address(&full[s]), round & 1);
        uint32_t at = address(stages) + s * STAGE_BYTES;
        multiply(d, descriptor(at + (group - 1) * 64 * TILE_K * 2), descriptor(at + A_BYTES));
        if (threadIdx.x % 32 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(&empty[s])) : "memory");
    }
    int thread = threadIdx.x % 128;
    int row = blockIdx.x * TILE_M + (group - 1) * 64 + thread / 32 * 16 + thread % 32 / 4;
    int column = blockIdx.y * TILE_N + thread % 4 * 2;
    for (int i = 0; i < 32; i += 4) {
        *(float2*)(c + (size_t)row * n + column + 2 * i) = make_float2(d[i], d[i + 1]);
        *(float2*)(c + (size_t)(row + 8) * n + column + 2 * i) = make_float2(d[i + 2], d[i + 3]);
    }
}
