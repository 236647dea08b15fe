// Microbenchmarks of a GPU's ceilings, compiled by NVRTC: see ceilings_cuda.py.

// Copies n vectors of 16 bytes, one a thread, past what the caches would keep: of loops and of more
// vectors a thread none was faster.
extern "C" __global__ void copy(const float4* x, float4* y, long long n) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) __stcs(y + i, __ldcs(x + i));
}

__device__ __forceinline__ float all(float4 v) { return v.x + v.y + v.z + v.w; }

// Reads n vectors `passes` times, past the L1 cache. Nobody's sum is -1, but the compiler cannot know.
extern "C" __global__ void __launch_bounds__(512) read(const float4* x, float* y, long long n, int passes) {
  long long stride = (long long)gridDim.x * blockDim.x;
  float s = 0, t = 0;
  for (int p = 0; p < passes; p++) {
    // Each pass meets each vector from another multiprocessor, which has it in no cache of its own.
    long long shift = (long long)p * 97 * blockDim.x % n;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
      long long j = i + shift, k = j + stride, l = k + stride, m = l + stride;
      float4 a = __ldcg(x + (j < n ? j : j - n)), b = __ldcg(x + (k < n ? k : k - n));
      float4 c = __ldcg(x + (l < n ? l : l - n)), d = __ldcg(x + (m < n ? m : m - n));
      s += all(a) + all(b);
      t += all(c) + all(d);
    }
    for (; i < n; i += stride) s += all(__ldcg(x + i));
  }
  if (s + t == -1.0f) y[0] = s;
}

// 16 independent chains of 256 fused multiply-adds a turn.
extern "C" __global__ void __launch_bounds__(256) multiply_add(float* y, float a, float b, int turns) {
  float v[16];
#pragma unroll
  for (int i = 0; i < 16; i++) v[i] = threadIdx.x + i;
  for (int t = 0; t < turns; t++) {
#pragma unroll
    for (int r = 0; r < 16; r++)
#pragma unroll
      for (int i = 0; i < 16; i++) v[i] = __fmaf_rn(v[i], a, b);
  }
  float s = 0;
#pragma unroll
  for (int i = 0; i < 16; i++) s += v[i];
  if (s == -1.0f) y[0] = s;
}

extern "C" __global__ void empty() {}

// Keeps the stream busy for so many nanoseconds.
extern "C" __global__ void wait(long long ns) {
  long long begun, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begun < ns);
}
