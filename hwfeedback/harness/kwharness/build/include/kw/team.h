// Blocks that hold a row between them, for CUDA alone: kw::meet(arrived, times) waits until blocks have come here so
// many times (all of them are to be on the device at once: kw::together of kw/launch.h), kw::fresh(p) reads what
// another block left, kw::copy_ahead<V>(to, from) begins to copy V elements to shared memory.
//
//   part[blockIdx.x] = own;
//   kw::meet(arrived, gridDim.x);
//   for (int b = 0; b < gridDim.x; ++b) all.merge(kw::fresh(part + b));
#ifndef KW_TEAM_H
#define KW_TEAM_H
#include <kw/base.h>
#ifdef __CUDACC__
#include <cuda_pipeline.h>
namespace kw {
// Only volatile loads are sure to look.
template <typename S>
KW_FN S fresh(const S* from) {
  static_assert(sizeof(S) % 4 == 0, "words of 4 bytes");
  int words[sizeof(S) / 4];
#pragma unroll
  for (int i = 0; i < (int)(sizeof(S) / 4); ++i) words[i] = reinterpret_cast<const volatile int*>(from)[i];
  S v;
  memcpy(&v, words, sizeof(S));
  return v;
}
// What the blocks wrote before is then there to be read.
KW_FN void meet(unsigned* arrived, unsigned times) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    while (*reinterpret_cast<const volatile unsigned*>(arrived) < times) __nanosleep(20);
    __threadfence();
  }
  __syncthreads();
}
// They are there when this thread has waited for its copies.
template <int V, typename T>
KW_FN void copy_ahead(T* to, const T* from) {
  constexpr int bytes = V * sizeof(T), each = bytes < 16 ? bytes : 16;
  if constexpr (each < 4) {
#pragma unroll
    for (int j = 0; j < V; ++j) to[j] = from[j];
  } else {
#pragma unroll
    for (int i = 0; i < bytes / each; ++i) __pipeline_memcpy_async(to + i * (each / sizeof(T)), from + i * (each / sizeof(T)), each);
  }
}
}  // namespace kw
#endif
#endif
