// Reductions of f(0), ..., f(n - 1), the same names on both devices: kw::sum, mean, prod, max, min (NaN where one is,
// as torch), maxnum (NaN left aside), argmax, argmin (the first of equals; a NaN before all else).
//
// On a CPU one thread reduces a row, in vector code. kw::sum<T> adds T elements up in float and these sums in double;
// kw::sum<0> adds all in double. Whole numbers and bool are added up in long long, which is what comes of them; their mean
// is a double. Half precision is converted first.
//
//   kw::parallel(rows, [=](long long r) {
//     y[r] = kw::sum(n, [&](long long i) { return x[r * n + i]; });
//   });
//
// On a GPU T threads side by side of a block do (kw::sum<T>, T a power of two; all threads of the block take part),
// and each of them gets the result. With T = 32 a block of 256 threads has 8 rows.
//
//   extern "C" __global__ void row_sum(const float* x, float* y, int n) {
//     const float* row = x + (long long)blockIdx.x * n;
//     const float s = kw::sum<256>(n, [&](int i) { return row[i]; });
//     if (threadIdx.x == 0) y[blockIdx.x] = s;
//   }
//
// What threads carry has a form with merge(): kw::Sum, Product, Max, Min, MaxNum, ArgMax, ArgMin (kw/softmax.h has
// MaxSum, kw/welford.h Welford). kw::warp_reduce<W>(c) merges what W lanes hold, kw::block_reduce<T>(c) what T threads
// side by side do, kw::column_reduce<X, Y>(c) what Y threads do that are X apart; each gets the same.
//
//   kw::Sum<double> s = {0};
//   for (int i = threadIdx.x; i < n; i += 256) s.add(row[i]);
//   s = kw::block_reduce<256>(s);  // s.v
#ifndef KW_REDUCE_H
#define KW_REDUCE_H
#include <kw/base.h>
namespace kw {
// What begins a search for the largest, and what is not a number.
template <typename T>
struct Limits;
template <>
struct Limits<float> {
  static KW_IN float top() { return INFINITY; }
  static KW_IN float none() { return NAN; }
};
template <>
struct Limits<double> {
  static KW_IN double top() { return INFINITY; }
  static KW_IN double none() { return NAN; }
};
template <typename T>
struct Sum {
  T v;
  KW_IN void add(T x) { v += x; }
  KW_IN void merge(const Sum& b) { v += b.v; }
};
template <typename T>
struct Product {
  T v;
  KW_IN void add(T x) { v *= x; }
  KW_IN void merge(const Product& b) { v *= b.v; }
};
// The largest, or NaN where there was one.
template <typename T>
struct Max {
  T v;
  KW_IN void add(T x) { v = x > v || x != x ? x : v; }
  KW_IN void merge(const Max& b) { add(b.v); }
};
template <typename T>
struct Min {
  T v;
  KW_IN void add(T x) { v = x < v || x != x ? x : v; }
  KW_IN void merge(const Min& b) { add(b.v); }
};
// The largest, NaN left aside.
template <typename T>
struct MaxNum {
  T v;
  KW_IN void add(T x) { v = x > v ? x : v; }
  KW_IN void merge(const MaxNum& b) { add(b.v); }
};
// Where the largest is: the first of equals, and a NaN before anything else. Elements are added in their order, from
// {-INFINITY, the largest I} on, which stands for the first element.
template <typename T, typename I>
struct ArgMax {
  T v;
  I at;
  KW_IN void add(T x, I i) {
    if (x > v || (x != x && v == v)) v = x, at = i;
  }
  KW_IN void merge(const ArgMax& b) {
    const bool nan = b.v != b.v, had = v != v;
    if (nan ? !had || b.at < at : !had && (b.v > v || (b.v == v && b.at < at))) *this = b;
  }
};
template <typename T, typename I>
struct ArgMin {
  T v;
  I at;
  KW_IN void add(T x, I i) {
    if (x < v || (x != x && v == v)) v = x, at = i;
  }
  KW_IN void merge(const ArgMin& b) {
    const bool nan = b.v != b.v, had = v != v;
    if (nan ? !had || b.at < at : !had && (b.v < v || (b.v == v && b.at < at))) *this = b;
  }
};
#ifdef __CUDACC__
// What another lane of a warp holds.
template <typename S>
KW_FN S shuffle_xor(S v, int mask) {
  static_assert(sizeof(S) % 4 == 0, "words of 4 bytes");
  int words[sizeof(S) / 4];
  memcpy(words, &v, sizeof(S));
#pragma unroll
  for (int i = 0; i < (int)(sizeof(S) / 4); ++i) words[i] = __shfl_xor_sync(0xffffffffu, words[i], mask);
  memcpy(&v, words, sizeof(S));
  return v;
}
template <typename S>
KW_FN S shuffle(S v, int lane, int width) {
  int words[sizeof(S) / 4];
  memcpy(words, &v, sizeof(S));
#pragma unroll
  for (int i = 0; i < (int)(sizeof(S) / 4); ++i) words[i] = __shfl_sync(0xffffffffu, words[i], lane, width);
  memcpy(&v, words, sizeof(S));
  return v;
}
template <int W, typename S>
KW_FN S warp_reduce(S v) {
  static_assert(W > 0 && W <= 32 && (W & (W - 1)) == 0, "a power of two");
#pragma unroll
  for (int mask = W / 2; mask > 0; mask /= 2) v.merge(shuffle_xor(v, mask));
  return v;
}
template <int T, typename S>
KW_FN S block_reduce(S v) {
  constexpr int W = T < 32 ? T : 32;
  v = warp_reduce<W>(v);
  if (T <= 32) return shuffle(v, 0, W);
  constexpr int parts = T / 32 < 1 ? 1 : T / 32;
  __shared__ S part[32];
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = warp_reduce<parts>(part[threadIdx.x / T * parts + threadIdx.x % parts]);
  __syncthreads();
  return shuffle(v, 0, 32);
}
template <int X, int Y, typename S>
KW_FN S column_reduce(S v) {
  static_assert((Y & (Y - 1)) == 0, "a power of two");
  if (Y == 1) return v;
  __shared__ S part[Y][X];
  const int x = threadIdx.x % X, y = threadIdx.x / X;
  part[y][x] = v;
  __syncthreads();
#pragma unroll
  for (int half = Y / 2; half > 0; half /= 2) {
    if (y < half) {
      S own = part[y][x];
      own.merge(part[y + half][x]);
      part[y][x] = own;
    }
    __syncthreads();
  }
  v = part[0][x];
  __syncthreads();
  return v;
}
// The sum of a vector, in pairs: of equal elements it is exact.
template <int V>
KW_FN float pairwise_sum(const float (&x)[V]) {
  static_assert((V & (V - 1)) == 0, "a power of two");
  float sum[V];
#pragma unroll
  for (int j = 0; j < V; ++j) sum[j] = x[j];
#pragma unroll
  for (int half = V / 2; half > 0; half /= 2) {
#pragma unroll
    for (int j = 0; j < half; ++j) sum[j] += sum[j + half];
  }
  return sum[0];
}
// The larger of two, or NaN where one is.
template <typename T>
KW_FN T most(T a, T b) {
  return a > b || a != a ? a : b;
}
#ifdef __CUDA_ARCH__
KW_FN float most(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
#endif
// Adds up what T threads see in float32 of each 16 elements, and these sums in double.
template <int T = 256, typename F>
KW_LOOP auto sum(int n, F f) -> typename Wide<decltype(f(0))>::sum {
  typedef Wide<decltype(f(0))> W;
  Sum<typename W::type> all = {0};
  for (int first = threadIdx.x % T; first < n; first += 16 * T) {
    typename W::part part = 0;
#pragma unroll
    for (int u = 0; u < 16; ++u)
      if (first + u * T < n) part += f(first + u * T);
    all.v += part;
  }
  return (typename W::sum)block_reduce<T>(all).v;
}
template <int T = 256, typename F>
KW_LOOP auto mean(int n, F f) -> typename Wide<decltype(f(0))>::mean {
  return (typename Wide<decltype(f(0))>::mean)sum<T>(n, f) / n;
}
template <int T, typename S, typename F>
KW_LOOP S carried(int n, S s, F f) {
#pragma unroll 4
  for (int i = threadIdx.x % T; i < n; i += T) s.add(f(i));
  return block_reduce<T>(s);
}
template <int T = 256, typename F>
KW_LOOP auto prod(int n, F f) -> typename Wide<decltype(f(0))>::sum {
  return carried<T>(n, Product<typename Wide<decltype(f(0))>::type>{1}, f).v;
}
template <int T = 256, typename F>
KW_LOOP auto max(int n, F f) -> decltype(f(0)) {
  typedef decltype(f(0)) V;
  return carried<T>(n, Max<V>{-Limits<V>::top()}, f).v;
}
template <int T = 256, typename F>
KW_LOOP auto min(int n, F f) -> decltype(f(0)) {
  typedef decltype(f(0)) V;
  return carried<T>(n, Min<V>{Limits<V>::top()}, f).v;
}
template <int T = 256, typename F>
KW_LOOP auto maxnum(int n, F f) -> decltype(f(0)) {
  typedef decltype(f(0)) V;
  return carried<T>(n, MaxNum<V>{-Limits<V>::top()}, f).v;
}
template <int T, typename S, typename F>
KW_LOOP int found(int n, S s, F f) {
  for (int i = threadIdx.x % T; i < n; i += T) s.add(f(i), i);
  s = block_reduce<T>(s);
  return s.at == INT_MAX ? 0 : s.at;
}
template <int T = 256, typename F>
KW_LOOP int argmax(int n, F f) {
  typedef decltype(f(0)) V;
  return found<T>(n, ArgMax<V, int>{-Limits<V>::top(), INT_MAX}, f);
}
template <int T = 256, typename F>
KW_LOOP int argmin(int n, F f) {
  typedef decltype(f(0)) V;
  return found<T>(n, ArgMin<V, int>{Limits<V>::top(), INT_MAX}, f);
}
#else
// The sum in double, or in long long.
template <int T, typename F>
KW_LOOP auto wide_sum(long long n, F f) {
  typedef decltype(f(0LL)) V;
  typename Wide<V>::type all = 0;
  if constexpr (T == 0) {
#pragma omp simd reduction(+ : all)
    for (long long i = 0; i < n; ++i) all += f(i);
  } else {
    for (long long first = 0; first < n; first += T) {
      const long long end = first + T < n ? first + T : n;
      typename Wide<V>::part part = 0;
#pragma omp simd reduction(+ : part)
      for (long long i = first; i < end; ++i) part += f(i);
      all += part;
    }
  }
  return all;
}
template <int T = 512, typename F>
KW_LOOP auto sum(long long n, F f) -> typename Wide<decltype(f(0LL))>::sum {
  return wide_sum<T>(n, f);
}
template <int T = 512, typename F>
KW_LOOP auto mean(long long n, F f) -> typename Wide<decltype(f(0LL))>::mean {
  return (double)wide_sum<T>(n, f) / n;
}
template <int T = 0, typename F>
KW_LOOP auto prod(long long n, F f) -> typename Wide<decltype(f(0LL))>::sum {
  typename Wide<decltype(f(0LL))>::type all = 1;
#pragma omp simd reduction(* : all)
  for (long long i = 0; i < n; ++i) all *= f(i);
  return all;
}
template <int T = 0, typename F>
KW_LOOP auto maxnum(long long n, F f) -> decltype(f(0LL)) {
  typedef decltype(f(0LL)) V;
  V m = -Limits<V>::top();
#pragma omp simd reduction(max : m)
  for (long long i = 0; i < n; ++i) {
    const V x = f(i);
    m = x > m ? x : m;
  }
  return m;
}
template <int T = 0, typename F>
KW_LOOP auto max(long long n, F f) -> decltype(f(0LL)) {
  typedef decltype(f(0LL)) V;
  V m = -Limits<V>::top();
  int bad = 0;
#pragma omp simd reduction(max : m) reduction(| : bad)
  for (long long i = 0; i < n; ++i) {
    const V x = f(i);
    m = x > m ? x : m;
    bad |= x != x;
  }
  return bad ? Limits<V>::none() : m;
}
template <int T = 0, typename F>
KW_LOOP auto min(long long n, F f) -> decltype(f(0LL)) {
  typedef decltype(f(0LL)) V;
  V m = Limits<V>::top();
  int bad = 0;
#pragma omp simd reduction(min : m) reduction(| : bad)
  for (long long i = 0; i < n; ++i) {
    const V x = f(i);
    m = x < m ? x : m;
    bad |= x != x;
  }
  return bad ? Limits<V>::none() : m;
}
template <typename V, typename F>
KW_LOOP long long first_of(long long n, V m, F f) {
  for (long long i = 0; i < n; ++i) {
    const V x = f(i);
    if (m != m ? x != x : x == m) return i;
  }
  return 0;
}
template <int T = 0, typename F>
KW_LOOP long long argmax(long long n, F f) {
  return first_of(n, max(n, f), f);
}
template <int T = 0, typename F>
KW_LOOP long long argmin(long long n, F f) {
  return first_of(n, min(n, f), f);
}
#endif
}  // namespace kw
#endif
