// Bias and GELU as anybody would write them in CUDA C++. nvcc's PTX of them is run in the simulator and held against our
// own (tests/programs/nvcc.rs), so that the simulator is checked by text and by mathematics that it shares no line with.

extern "C" __global__ void bias_gelu_tanh(const float* __restrict__ x, const float* __restrict__ bias,
                                          float* __restrict__ y, unsigned rows, unsigned columns) {
    unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    float b = bias[column];
    for (unsigned row = blockIdx.y; row < rows; row += gridDim.y) {
        size_t i = (size_t)row * columns + column;
        float p = x[i] + b;
        y[i] = 0.5f * p * (1.0f + tanhf(0.7978845608f * (p + 0.044715f * p * p * p)));
    }
}

// Signed sizes and no __restrict__: other instructions for the same thing.
extern "C" __global__ void bias_gelu_erf(const float* x, const float* bias, float* y, int rows, int columns) {
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        int i = row * columns + column;
        float p = x[i] + bias[column];
        y[i] = 0.5f * p * (1.0f + erff(0.70710678f * p));
    }
}
