// Running sums. On a CPU kw::scan(n, f, g) calls g(i, f(0) + ... + f(i)) for i = 0, ..., n - 1, and kw::scan_rows<R>
// does so for rows first, ..., first + R - 1 in one loop: several sums do not wait for each other.
//
//   kw::parallel((rows + 3) / 4, [=](long long p) {
//     kw::scan_rows<4>(4 * p, rows, n, [&](long long r, long long i) { return x[r * n + i]; },
//                      [&](long long r, long long i, float s) { y[r * n + i] = s; });
//   });
//
// On a GPU the T threads of a block take K vectors of V elements each at a time: kw::scan<T, V>(n, f, g) is of one row
// a block. kw::block_scan<T, K>(v, none, earlier, all) gives what the threads before this one hold of each of K tiles,
// merged in their order, and what all of them hold, in any form with merge() (kw/reduce.h).
//
//   extern "C" __global__ void cumsum(const float* x, float* y, int n) {
//     const long long row = (long long)blockIdx.x * n;
//     kw::scan<256>(n, [&](int i) { return x[row + i]; }, [&](int i, float s) { y[row + i] = s; });
//   }
#ifndef KW_SCAN_H
#define KW_SCAN_H
#include <kw/reduce.h>
namespace kw {
#ifdef __CUDACC__
template <int T, int K, typename S>
KW_FN void block_scan(const S (&v)[K], S none, S (&earlier)[K], S (&all)[K]) {
  __shared__ S part[K][T / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto from = [&](S run, int apart) {
    int words[sizeof(S) / 4];
    memcpy(words, &run, sizeof(S));
#pragma unroll
    for (int i = 0; i < (int)(sizeof(S) / 4); ++i) words[i] = __shfl_up_sync(0xffffffffu, words[i], apart);
    memcpy(&run, words, sizeof(S));
    return run;
  };
  S run[K];
#pragma unroll
  for (int k = 0; k < K; ++k) run[k] = v[k];
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      S other = from(run[k], apart);
      if (lane >= apart) {
        other.merge(run[k]);
        run[k] = other;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (lane == 31) part[k][warp] = run[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    S sum = none;
    earlier[k] = none;
#pragma unroll
    for (int w = 0; w < T / 32; ++w) {
      if (w == warp) earlier[k] = sum;
      sum.merge(part[k][w]);
    }
    all[k] = sum;
    const S inside = from(run[k], 1);
    if (lane > 0) earlier[k].merge(inside);
  }
  __syncthreads();
}
template <int T = 256, int V = 4, typename F, typename G>
KW_LOOP void scan(int n, F f, G g) {
  typedef decltype(f(0)) E;
  typedef Sum<typename Wide<E>::type> S;
  S before = {0};
  for (int start = 0; start < n; start += T * V) {
    const int mine = start + (int)threadIdx.x * V;
    E x[V];
    S own[1] = {{0}}, earlier[1], all[1];
#pragma unroll
    for (int j = 0; j < V; ++j) x[j] = mine + j < n ? f(mine + j) : E(0), own[0].v += x[j];
    block_scan<T, 1>(own, S{0}, earlier, all);
    S run = before;
    run.merge(earlier[0]);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      run.v += x[j];
      if (mine + j < n) g(mine + j, (typename Wide<E>::sum)run.v);
    }
    before.merge(all[0]);
  }
}
#else
template <typename F, typename G>
KW_LOOP void scan(long long n, F f, G g) {
  typedef decltype(f(0LL)) V;
  typename Wide<V>::type s = 0;
  for (long long i = 0; i < n; ++i) {
    s += f(i);
    g(i, (typename Wide<V>::sum)s);
  }
}
template <int R, typename F, typename G>
KW_LOOP void scan_rows(long long first, long long rows, long long n, F f, G g) {
  typedef decltype(f(0LL, 0LL)) V;
  if (first + R > rows) {
    for (long long r = first; r < rows; ++r) {
      scan(n, [&](long long i) { return f(r, i); }, [&](long long i, typename Wide<V>::sum s) { g(r, i, s); });
    }
    return;
  }
  typename Wide<V>::type s[R] = {};
  for (long long i = 0; i < n; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      s[r] += f(first + r, i);
      g(first + r, i, (typename Wide<V>::sum)s[r]);
    }
  }
}
#endif
}  // namespace kw
#endif
