#include "softmax.h"

#include <cmath>

static __device__ float all(float v, bool largest) {
  __shared__ float part[32];
  for (int o = 16; o; o >>= 1) {
    float u = __shfl_xor_sync(~0u, v, o);
    v = largest ? fmaxf(v, u) : v + u;
  }
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = part[0];
  for (int i = 1; i < blockDim.x / 32; i++) v = largest ? fmaxf(v, part[i]) : v + part[i];
  __syncthreads();
  return v;
}

static __global__ void softmax_kernel(const float* x, float* y, long columns) {
  x += blockIdx.x * columns;
  y += blockIdx.x * columns;
  float most = -INFINITY, sum = 0;
  for (long i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, x[i]);
  most = all(most, true);
  for (long i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(x[i] - most);
  sum = all(sum, false);
  for (long i = threadIdx.x; i < columns; i += blockDim.x) y[i] = expf(x[i] - most) / sum;
}

void softmax_rows(const float* x, float* y, long rows, long columns, cudaStream_t stream) {
  softmax_kernel<<<rows, 256, 0, stream>>>(x, y, columns);
}
