// Packed loads and stores: V elements that move in one instruction where V * sizeof(T) is at most 16 and the address
// is a multiple of that. An array holds them.
//
//   float v[4];
//   kw::load<4>(v, x + 4 * i);
//   for (int j = 0; j < 4; ++j) v[j] *= 2;
//   kw::store<4>(y + 4 * i, v);
//
// kw::aligned(x, y) says whether pointers are multiples of 16 bytes, for code of the host that chooses V.
//
// On a CPU the compiler makes vectors by itself; kw::stream(y, tile, n) there writes n floats past the cache, for
// outputs that are larger than it and tiles that were computed in it. kw::prefetch(x, n) asks for n elements.
#ifndef KW_PACK_H
#define KW_PACK_H
#include <kw/base.h>
namespace kw {
#ifndef __CUDACC_RTC__
template <typename... P>
static inline bool aligned(const P*... p) {
  return ((reinterpret_cast<uintptr_t>(p) | ...) & 15) == 0;
}
#endif
#ifdef __CUDACC__
template <int V, typename T>
struct alignas(V * sizeof(T) > 16 ? 16 : V * sizeof(T)) Pack {
  T x[V];
};
template <int V, typename T>
KW_FN void load(T (&to)[V], const T* from) {
  const Pack<V, T> p = *reinterpret_cast<const Pack<V, T>*>(from);
#pragma unroll
  for (int j = 0; j < V; ++j) to[j] = p.x[j];
}
template <int V, typename T>
KW_FN void store(T* to, const T (&from)[V]) {
  Pack<V, T> p;
#pragma unroll
  for (int j = 0; j < V; ++j) p.x[j] = from[j];
  *reinterpret_cast<Pack<V, T>*>(to) = p;
}
#else
template <int V, typename T>
KW_LOOP void load(T (&to)[V], const T* from) {
  for (int j = 0; j < V; ++j) to[j] = from[j];
}
template <int V, typename T>
KW_LOOP void store(T* to, const T (&from)[V]) {
  for (int j = 0; j < V; ++j) to[j] = from[j];
}
template <typename T>
KW_LOOP void prefetch(const T* from, long long n) {
  for (long long i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(from + i);
}
KW_FN void stream(float* to, const float* from, long long n) {
  long long i = 0;
#ifdef __AVX__
  typedef float Lanes __attribute__((vector_size(32)));
  for (; i < n && ((unsigned long long)(to + i) & 31); ++i) to[i] = from[i];
  for (; i + 8 <= n; i += 8) {
    Lanes v;
    __builtin_memcpy(&v, from + i, 32);
    __builtin_ia32_movntps256(to + i, v);
  }
#endif
  for (; i < n; ++i) to[i] = from[i];
}
#endif
}  // namespace kw
#endif
