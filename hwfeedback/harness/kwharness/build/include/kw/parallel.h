// Loops whose iterations do not depend on each other.
//
// On a CPU kw::parallel(n, f) runs f(0) to f(n - 1) on the caller's threads (torch.set_num_threads), kw::parallel<T>
// on T of them at most; kw::tiles<C>(rows, width, f) runs f(row, from, to) over pieces of C columns of each row;
// kw::each(n, f) is a loop of one thread that becomes vector code. Have parallel and tiles capture by value ([=]).
//
//   kw::tiles<4096>(1, n, [=](long long, long long from, long long to) {
//     kw::each(from, to, [=](long long i) { y[i] = x[i] < 0 ? 0 : x[i]; });
//   });
//
// On a GPU kw::each<T>(n, f) runs f on T threads side by side of a block, kw::grid_each(n, f) on all of a grid.
//
//   extern "C" __global__ void relu(const float* x, float* y, long long n) {
//     kw::grid_each(n, [=](long long i) { y[i] = x[i] < 0 ? 0 : x[i]; });
//   }
#ifndef KW_PARALLEL_H
#define KW_PARALLEL_H
#include <kw/base.h>
#ifdef __CUDACC__
namespace kw {
template <int T = 256, typename F>
KW_LOOP void each(long long from, long long to, F f) {
#pragma unroll 4
  for (long long i = from + threadIdx.x % T; i < to; i += T) f(i);
}
template <int T = 256, typename F>
KW_LOOP void each(int n, F f) {
#pragma unroll 4
  for (int i = threadIdx.x % T; i < n; i += T) f(i);
}
template <typename F>
KW_LOOP void grid_each(long long n, F f) {
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) f(i);
}
}  // namespace kw
#else
#include <omp.h>
namespace kw {
// What f captured by value lies in registers then, and no loop of its own reads it from memory.
template <typename F, typename... A>
static inline __attribute__((flatten)) void call(F f, A... a) {
  f(a...);
}
template <int T = 0, typename F>
KW_LOOP void parallel(long long n, F f) {
  if constexpr (T == 1) {
    for (long long i = 0; i < n; ++i) call(f, i);
  } else if constexpr (T > 0) {
#pragma omp parallel for schedule(static) firstprivate(f) num_threads(omp_get_max_threads() < T ? omp_get_max_threads() : T)
    for (long long i = 0; i < n; ++i) call(f, i);
  } else {
#pragma omp parallel for schedule(static) firstprivate(f)
    for (long long i = 0; i < n; ++i) call(f, i);
  }
}
template <int C = 4096, int T = 0, typename F>
KW_LOOP void tiles(long long rows, long long width, F f) {
  const long long count = (width + C - 1) / C;
  parallel<T>(rows * count, [=](long long task) {
    const long long from = task % count * C;
    f(task / count, from, width - from < C ? width : from + C);
  });
}
template <int T = 0, typename F>
KW_LOOP void each(long long from, long long to, F f) {
#pragma omp simd
  for (long long i = from; i < to; ++i) f(i);
}
template <int T = 0, typename F>
KW_LOOP void each(long long n, F f) {
  each(0, n, f);
}
}  // namespace kw
#endif
#endif
