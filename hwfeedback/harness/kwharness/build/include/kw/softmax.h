// Online softmax (Milakov and Gimelshein 2018): the largest of f(0), ..., f(n - 1) and the sum of exponentials under
// it, in one walk. kw::max_sum(n, f) gives both: m.v and m.s; m.under() is what to subtract (0 under a largest of
// -infinity, where differences would be NaN).
//
//   kw::parallel(rows, [=](long long r) {
//     const float* a = x + r * n;
//     const auto m = kw::max_sum(n, [&](long long i) { return a[i]; });
//     const float scale = 1 / m.s;
//     kw::each(n, [&](long long i) { y[r * n + i] = kw::exp(a[i] - m.under()) * scale; });
//   });
//
// On a GPU kw::max_sum<T> is of T threads side by side, as kw/reduce.h's. On a CPU rows that stay in the cache are
// faster with kw::maxnum, then kw::sum of what the exponentials are stored into.
#ifndef KW_SOFTMAX_H
#define KW_SOFTMAX_H
#include <kw/exp.h>
#include <kw/reduce.h>
namespace kw {
template <typename T>
struct MaxSum {
  T v;
  double s;
  KW_IN T under() const { return v == -INFINITY ? T(0) : v; }
  // Stands under what is larger. That is seldom after the first few elements.
  KW_IN void raise(T top) {
    if (top > v) s *= exp(v - top), v = top;
  }
  KW_IN void add(T x) {
    raise(x);
    s += exp(x - under());
  }
  KW_IN void merge(const MaxSum& b) {
    MaxSum r = {b.v > v ? b.v : v, 0};
    r.s = s * exp(v - r.under()) + b.s * exp(b.v - r.under());
    *this = r;
  }
};
#ifdef __CUDACC__
// All of W lanes: first the largest, then what each has under that.
template <int W, typename T>
KW_FN MaxSum<T> warp_reduce(MaxSum<T> v) {
  MaxSum<T> r = v;
#pragma unroll
  for (int mask = W / 2; mask > 0; mask /= 2) {
    const T other = shuffle_xor(r.v, mask);
    r.v = other > r.v ? other : r.v;
  }
  r.s = v.s * exp(v.v - r.under());
#pragma unroll
  for (int mask = W / 2; mask > 0; mask /= 2) r.s += shuffle_xor(r.s, mask);
  return r;
}
template <int T = 256, typename F>
KW_LOOP auto max_sum(int n, F f) -> MaxSum<decltype(f(0))> {
  typedef decltype(f(0)) V;
  MaxSum<V> all = {-Limits<V>::top(), 0};
  for (int first = threadIdx.x % T; first < n; first += 8 * T) {
    V x[8], top = -Limits<V>::top();
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      x[u] = first + u * T < n ? f(first + u * T) : -Limits<V>::top();
      top = x[u] > top ? x[u] : top;
    }
    all.raise(top);
    V part = 0;
#pragma unroll
    for (int u = 0; u < 8; ++u) part += exp(x[u] - all.under());
    all.s += part;
  }
  return block_reduce<T>(all);
}
#else
template <int T = 2048, typename F>
KW_LOOP auto max_sum(long long n, F f) -> MaxSum<decltype(f(0LL))> {
  typedef decltype(f(0LL)) V;
  MaxSum<V> all = {-Limits<V>::top(), 0};
  for (long long first = 0; first < n; first += T) {
    const long long count = first + T < n ? T : n - first;
    all.raise(maxnum(count, [&](long long i) { return f(first + i); }));
    const V top = all.under();
    all.s += sum(count, [&](long long i) { return exp(f(first + i) - top); });
  }
  return all;
}
#endif
}  // namespace kw
#endif
