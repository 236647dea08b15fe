// Mean and squares about it in one walk (Chan, Golub and LeVeque 1979): kw::welford(n, f) gives w.v, the mean of f(0),
// ..., f(n - 1), and w.s, the sum of the squared differences from it: w.s / n is the variance.
//
//   kw::parallel(rows, [=](long long r) {
//     const auto w = kw::welford(n, [&](long long i) { return x[r * n + i]; });
//     const float mean = w.v, scale = 1 / sqrtf((float)(w.s / n) + 1e-5f);
//     kw::each(n, [&](long long i) { y[r * n + i] = (x[r * n + i] - mean) * scale; });
//   });
//
// On a GPU kw::welford<T> is of T threads side by side, as kw/reduce.h's.
#ifndef KW_WELFORD_H
#define KW_WELFORD_H
#include <kw/reduce.h>
namespace kw {
// 1 / n of a count. On a GPU by an approximate reciprocal and a step of Newton's: a division of doubles has a branch,
// over which no load moves.
KW_FN double reciprocal(double n) {
#ifdef __CUDA_ARCH__
  float r;
  asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"((float)n));
#else
  const float r = 1.0f / (float)n;
#endif
  return r * (2.0 - n * r);
}
// The mean v of n elements, and the sum of squares about it.
template <typename T>
struct Welford {
  double n, v, s;
  KW_IN void add(T x) {
    n += 1;
    const double apart = x - v;
    v += apart * reciprocal(n);
    s += apart * (x - v);
  }
  KW_IN void merge(const Welford& b) {
    if (b.n == 0) return;
    const double all = n + b.n, apart = b.v - v, share = b.n * reciprocal(all);
    s += b.s + apart * apart * n * share;
    v += apart * share;
    n = all;
  }
};
#ifdef __CUDACC__
// All of W lanes: first the mean, then what each is apart from that.
template <int W, typename T>
KW_FN Welford<T> warp_reduce(Welford<T> v) {
  double n = v.n, sum = v.n * v.v;
#pragma unroll
  for (int mask = W / 2; mask > 0; mask /= 2) {
    n += shuffle_xor(n, mask);
    sum += shuffle_xor(sum, mask);
  }
  const double mean = n > 0 ? sum * reciprocal(n) : 0, apart = v.v - mean;
  double s = v.n > 0 ? v.s + apart * apart * v.n : 0;
#pragma unroll
  for (int mask = W / 2; mask > 0; mask /= 2) s += shuffle_xor(s, mask);
  return {n, mean, s};
}
template <int T = 256, typename F>
KW_LOOP auto welford(int n, F f) -> Welford<decltype(f(0))> {
  typedef decltype(f(0)) V;
  Welford<V> all = {0, 0, 0};
  for (int first = threadIdx.x % T; first < n; first += 8 * T) {
    V x[8];
    double total = 0, count = 0, squares = 0;
#pragma unroll
    for (int u = 0; u < 8; ++u)
      if (first + u * T < n) x[u] = f(first + u * T), total += x[u], count += 1;
    const double mean = total * reciprocal(count);
#pragma unroll
    for (int u = 0; u < 8; ++u)
      if (first + u * T < n) squares += (x[u] - mean) * (x[u] - mean);
    all.merge({count, mean, squares});
  }
  return block_reduce<T>(all);
}
#else
template <int T = 2048, typename F>
KW_LOOP auto welford(long long n, F f) -> Welford<decltype(f(0LL))> {
  typedef decltype(f(0LL)) V;
  Welford<V> all = {0, 0, 0};
  for (long long first = 0; first < n; first += T) {
    const long long count = first + T < n ? T : n - first;
    const double mean = wide_sum<0>(count, [&](long long i) { return f(first + i); }) / count;
    const V about = mean;
    const double squares = sum<512>(count, [&](long long i) {
      const V apart = f(first + i) - about;
      return apart * apart;
    });
    all.merge({(double)count, mean, squares - count * (mean - about) * (mean - about)});
  }
  return all;
}
#endif
}  // namespace kw
#endif
