// Kernels each of which has one thing wrong with it, for what the rules make of them
// (../../measured_test.go). make.py measures them. Prints a
// line for each: name, milliseconds between events, bytes that it has to move,
// launches, kernel.
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

__global__ void __launch_bounds__(256) gelu_stream(const float4* __restrict__ x, float4* __restrict__ y, long long n4) {
  const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
  if (i < n4) { float4 v = x[i]; y[i] = make_float4(gelu(v.x), gelu(v.y), gelu(v.z), gelu(v.w)); }
}
__global__ void __launch_bounds__(256) relu_narrow(const float* __restrict__ x, float* __restrict__ y, long long n) {
  const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = fmaxf(x[i], 0.f);
}
__global__ void __launch_bounds__(256) small_tanh(const float* __restrict__ x, float* __restrict__ y, int n) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = tanhf(x[i]);
}
__device__ __forceinline__ float block_max(float v, float* part) {
  for (int d = 16; d; d >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = part[0];
  for (int w = 1; w < blockDim.x / 32; ++w) v = fmaxf(v, part[w]);
  __syncthreads();
  return v;
}
__device__ __forceinline__ float block_sum(float v, float* part) {
  for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0;
  for (int w = 0; w < blockDim.x / 32; ++w) v += part[w];
  __syncthreads();
  return v;
}
__global__ void __launch_bounds__(1024) long_rows(const float4* __restrict__ x, float* __restrict__ y, long long n4) {
  __shared__ float part[32];
  const float4* row = x + blockIdx.x * n4;
  float m = -FLT_MAX;
#pragma unroll 4
  for (long long i = threadIdx.x; i < n4; i += 1024) { float4 v = row[i]; m = fmaxf(m, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w))); }
  m = block_max(m, part);
  if (threadIdx.x == 0) y[blockIdx.x] = m;
}
// 512 threads, 4 blocks a multiprocessor; a row of 64 floats a thread, some arithmetic.
__global__ void __launch_bounds__(512, 4) wave_tail(const float4* __restrict__ x, float4* __restrict__ y, int n4) {
  __shared__ float part[16];
  const float4* row = x + (long long)blockIdx.x * n4;
  float s = 0;
  for (int i = threadIdx.x; i < n4; i += 512) { float4 v = row[i]; s += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }
  s = rsqrtf(block_sum(s, part) / n4);
  for (int i = threadIdx.x; i < n4; i += 512) {
    float4 v = row[i];
    float* p = (float*)&v;
    for (int j = 0; j < 4; ++j) { float u = p[j] * s; for (int k = 0; k < 24; ++k) u = fmaf(u, 0.999f, 0.001f * u * u); p[j] = u; }
    y[(long long)blockIdx.x * n4 + i] = v;
  }
}
__global__ void __launch_bounds__(256) across_rows(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
  const long long i = (long long)blockIdx.x * 256 + threadIdx.x;  // along y
  const int r = i % rows, c = i / rows;
  if (c < columns) y[i] = x[(long long)r * columns + c];
}
__global__ void __launch_bounds__(1024) three_passes(const float4* __restrict__ x, float4* __restrict__ y, int n4) {
  __shared__ float part[32];
  const float4* row = x + (long long)blockIdx.x * n4;
  float m = -FLT_MAX, s = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < n4; i += 1024) { float4 v = row[i]; m = fmaxf(m, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w))); }
  m = block_max(m, part);
#pragma unroll 4
  for (int i = threadIdx.x; i < n4; i += 1024) { float4 v = row[i]; s += __expf(v.x - m) + __expf(v.y - m) + __expf(v.z - m) + __expf(v.w - m); }
  s = 1 / block_sum(s, part);
#pragma unroll 4
  for (int i = threadIdx.x; i < n4; i += 1024) {
    float4 v = row[i];
    y[(long long)blockIdx.x * n4 + i] = make_float4(__expf(v.x - m) * s, __expf(v.y - m) * s, __expf(v.z - m) * s, __expf(v.w - m) * s);
  }
}
// 64 values a thread, and 32 registers.
__global__ void __launch_bounds__(1024, 2) spilling(const float4* __restrict__ x, float4* __restrict__ y) {
  float v[64];
  const float4* in = x + (long long)blockIdx.x * 16384 + threadIdx.x;
  float s = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) { float4 u = in[i * 1024]; v[4 * i] = u.x; v[4 * i + 1] = u.y; v[4 * i + 2] = u.z; v[4 * i + 3] = u.w; s += u.x + u.y + u.z + u.w; }
  for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
#pragma unroll
  for (int i = 0; i < 16; ++i)
    y[(long long)blockIdx.x * 16384 + threadIdx.x + i * 1024] = make_float4(v[4 * i] - s, v[4 * i + 1] - s, v[4 * i + 2] - s, v[4 * i + 3] - s);
}
// A transpose whose tile in shared memory is read along its columns.
__global__ void __launch_bounds__(1024) conflicting(const float* __restrict__ x, float* __restrict__ y, int n) {
  __shared__ float tile[32][32];
  const int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
  tile[ty][tx] = x[(long long)(blockIdx.y * 32 + ty) * n + blockIdx.x * 32 + tx];
  __syncthreads();
  y[(long long)(blockIdx.x * 32 + ty) * n + blockIdx.y * 32 + tx] = tile[tx][ty];
}
// A tree in shared memory for each short row, a barrier a step.
__global__ void __launch_bounds__(1024) waiting(const float* __restrict__ x, float* __restrict__ y, int n) {
  __shared__ float part[1024];
  const float* row = x + (long long)blockIdx.x * n;
  float v[4], s = 0;
  for (int i = 0; i < 4; ++i) { v[i] = row[threadIdx.x + i * 1024]; s += v[i] * v[i]; }
  part[threadIdx.x] = s;
  __syncthreads();
  for (int d = 512; d; d >>= 1) { if (threadIdx.x < d) part[threadIdx.x] += part[threadIdx.x + d]; __syncthreads(); }
  s = rsqrtf(part[0] / n + 1e-5f);
  for (int i = 0; i < 4; ++i) y[(long long)blockIdx.x * n + threadIdx.x + i * 1024] = v[i] * s;
}
// A row of 64 float4 a thread stays in registers: one block fits.
__global__ void __launch_bounds__(256, 1) many_registers(const float4* __restrict__ x, float4* __restrict__ y) {
  float4 v[44];
  float s = 0;
#pragma unroll
  for (int i = 0; i < 44; ++i) v[i] = x[((long long)blockIdx.x * 44 + i) * 256 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 44; ++i) s += v[i].x + v[i].y + v[i].z + v[i].w;
  for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);
#pragma unroll
  for (int i = 0; i < 44; ++i) y[((long long)blockIdx.x * 44 + i) * 256 + threadIdx.x] = make_float4(v[i].x - s, v[i].y - s, v[i].z - s, v[i].w - s);
}
__global__ void __launch_bounds__(256) windows(const float* __restrict__ x, float* __restrict__ y, int h, int w) {
  const int ow = w - 10, oh = h - 10;
  const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
  const int c = i % ow, r = i / ow % oh, p = i / ((long long)ow * oh);
  const float* in = x + ((long long)p * h + r) * w + c;
  float m = -FLT_MAX;
  for (int a = 0; a < 11; ++a)
#pragma unroll
    for (int b = 0; b < 11; ++b) m = fmaxf(m, in[(long long)a * w + b]);
  y[i] = m;
}
__global__ void __launch_bounds__(256) mish_precise(const float4* __restrict__ x, float4* __restrict__ y, long long n4) {
  const long long i = (long long)blockIdx.x * 256 + threadIdx.x;
  if (i >= n4) return;
  float4 v = x[i];
  float* p = (float*)&v;
#pragma unroll
  for (int j = 0; j < 4; ++j) { float u = p[j]; for (int k = 0; k < 2; ++k) u = u * tanhf(log1pf(expf(u))); p[j] = u; }
  y[i] = v;
}
__global__ void __launch_bounds__(256) one_load(const float* __restrict__ x, float* __restrict__ y, int n) {
  __shared__ float part[8];
  const float* row = x + (long long)blockIdx.x * n;
  float s = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < n; i += 256) s = fmaf(s, 0.5f, __ldcv(row + i) * (s < 1e30f));
  s = block_sum(s, part);
  if (threadIdx.x == 0) y[blockIdx.x] = s;
}

static float *x, *y;
static long long flush;
template <typename F> void run(const char* name, const char* kernel, double mib, int launches, F f) {
  cudaEvent_t a, b;
  cudaEventCreate(&a); cudaEventCreate(&b);
  f();
  std::vector<float> t;
  for (int i = 0; i < 15; ++i) {
    cudaMemsetAsync(x + flush, i, 200 << 20);  // what is in L2 is none of its data
    cudaEventRecord(a); f(); cudaEventRecord(b); cudaEventSynchronize(b);
    float ms; cudaEventElapsedTime(&ms, a, b); t.push_back(ms);
  }
  std::sort(t.begin(), t.end());
  cudaProfilerStart(); f(); cudaDeviceSynchronize(); cudaProfilerStop();
  if (cudaGetLastError() != cudaSuccess) exit(1);
  printf("%s,%.6f,%.0f,%d,%s\n", name, t[7], mib * 1048576, launches, kernel);
}
int main() {
  const long long n = flush = 256ll << 20;  // 1 GiB
  cudaMalloc(&x, n * 4 + (200 << 20)); cudaMalloc(&y, n * 4);
  cudaMemset(x, 0x3c, n * 4); cudaMemset(y, 0, n * 4);
  auto X4 = (const float4*)x; auto Y4 = (float4*)y;
  run("gelu_stream", "gelu_stream", 2048, 1, [&] { gelu_stream<<<n / 1024, 256>>>(X4, Y4, n / 4); });
  run("relu_narrow", "relu_narrow", 2048, 1, [&] { relu_narrow<<<n / 256, 256>>>(x, y, n); });
  run("small_tanh", "small_tanh", 0.125, 5, [&] { for (int i = 0; i < 5; ++i) small_tanh<<<64, 256>>>(x, y, 16384); });
  run("long_rows", "long_rows", 256, 1, [&] { long_rows<<<4, 1024>>>(X4, y, 4 << 20); });
  run("wave_tail", "wave_tail", 600. * 2 / 16, 1, [&] { wave_tail<<<600, 512>>>(X4, Y4, 4096); });
  run("across_rows", "across_rows", 2048, 1, [&] { across_rows<<<n / 256, 256>>>(x, y, 16384, 16384); });
  run("three_passes", "three_passes", 2048, 1, [&] { three_passes<<<1024, 1024>>>(X4, Y4, 65536); });
  run("spilling", "spilling", 2048, 1, [&] { spilling<<<4096, 1024>>>(X4, Y4); });
  run("conflicting", "conflicting", 2048, 1, [&] { conflicting<<<dim3(512, 512), 1024>>>(x, y, 16384); });
  run("waiting", "waiting", 2048, 1, [&] { waiting<<<65536, 1024>>>(x, y, 4096); });
  run("many_registers", "many_registers", 5957 * 44. / 128, 1, [&] { many_registers<<<5957, 256>>>(X4, Y4); });
  run("windows", "windows", 2 * 64, 1, [&] { windows<<<(long long)1014 * 1014 * 16 / 256, 256>>>(x, y, 1024, 1024); });
  run("mish_precise", "mish_precise", 2048, 1, [&] { mish_precise<<<n / 1024, 256>>>(X4, Y4, n / 4); });
  run("one_load", "one_load", 1024, 1, [&] { one_load<<<4096, 256>>>(x, y, 65536); });
  return 0;
}
