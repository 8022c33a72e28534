// Kernels in plain CUDA C++ whose PTX, as nvcc writes it, the simulator has to run. README.md says how it was made.

#include <cuda_bf16.h>

// The sum of x, by shuffles within warps, shared memory between them, and an atomic addition between blocks.
extern "C" __global__ void reduce(const float* __restrict__ x, float* __restrict__ out, int n) {
    __shared__ float partial[32];
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xFFFFFFFF, sum, offset);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f;
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xFFFFFFFF, sum, offset);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }
}

// The same without an order that depends on time: the last block adds up what each has left.
__device__ unsigned int arrived = 0;
extern "C" __global__ void reduce_last(const float* __restrict__ x, volatile float* partial, float* out, int n) {
    __shared__ float scratch[256];
    __shared__ bool last;
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    scratch[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = scratch[0];
        __threadfence();
        last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float total = 0.0f;
        for (int i = 0; i < gridDim.x; i++) total += partial[i];
        *out = total;
    }
}

// Counts of 64 classes: privately in shared memory, then added to those of all blocks.
extern "C" __global__ void histogram(const unsigned char* __restrict__ x, unsigned int* counts, int n) {
    __shared__ unsigned int own[64];
    for (int i = threadIdx.x; i < 64; i += blockDim.x) own[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[x[i] & 63], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 64; i += blockDim.x) atomicAdd(&counts[i], own[i]);
}

// y [columns, rows] = x [rows, columns]ᵀ through tiles of 32 × 33 words, so that columns meet no bank twice.
extern "C" __global__ void transpose(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
    __shared__ float tile[32][33];
    int column = blockIdx.x * 32 + threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += blockDim.y) {
        int row = blockIdx.y * 32 + i;
        if (row < rows && column < columns) tile[i][threadIdx.x] = x[(size_t)row * columns + column];
    }
    __syncthreads();
    int row = blockIdx.y * 32 + threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += blockDim.y) {
        int to = blockIdx.x * 32 + i;
        if (row < rows && to < columns) y[(size_t)to * rows + row] = tile[threadIdx.x][i];
    }
}

// A row a block, accurate exponentials.
extern "C" __global__ void softmax(const float* __restrict__ x, float* __restrict__ y, int columns) {
    __shared__ float scratch[32];
    const float* row = x + (size_t)blockIdx.x * columns;
    float most = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, row[i]);
    for (int offset = 16; offset > 0; offset /= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, offset));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < blockDim.x / 32; i++) most = fmaxf(most, scratch[i]);
    __syncthreads();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(row[i] - most);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, offset);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < blockDim.x / 32; i++) sum += scratch[i];
    for (int i = threadIdx.x; i < columns; i += blockDim.x) y[(size_t)blockIdx.x * columns + i] = expf(row[i] - most) / sum;
}

// bf16 pairs, 16 bytes a thread at a time, a dynamic part of shared memory, a switch, integer division.
extern "C" __global__ void mixed(const __nv_bfloat162* __restrict__ x, __nv_bfloat162* __restrict__ y, int n, int period) {
    extern __shared__ __nv_bfloat162 staged[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    staged[threadIdx.x] = i < n ? x[i] : __nv_bfloat162();
    __syncthreads();
    if (i >= n) return;
    __nv_bfloat162 value = staged[threadIdx.x ^ 1];
    __nv_bfloat162 two = __float2bfloat162_rn(2.0f), one = __float2bfloat162_rn(1.0f);
    switch ((i / period) % 5) {
        case 0: value = __hfma2(value, two, one); break;
        case 1: value = __hadd2(value, one); break;
        case 2: value = __hmul2(value, value); break;
        case 3: value = __hneg2(value); break;
        default: value = __hmax2(value, one); break;
    }
    y[i] = value;
}
