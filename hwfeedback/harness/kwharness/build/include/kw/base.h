// What every header of kw rests on. It need not be included by itself.
//
// On a CPU it sets two things for all code behind it: loops over selections (c ? a : b) become vector code, and no
// product is joined with a sum, so that a value that is computed twice is the same twice. Who wants a fused
// multiply-add writes __builtin_fmaf. In front of the first include, #define KW_VECTOR 512 (256, 128) has vectors of so
// many bits where the processor has them, and #define KW_VECTOR 32 none.
#ifndef KW_BASE_H
#define KW_BASE_H
#ifdef __CUDACC__
#ifndef __CUDACC_RTC__
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#endif
#define KW_FN __device__ __forceinline__
#define KW_IN __device__
#define KW_LOOP __device__ __forceinline__
#else
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef KW_VECTOR
#if KW_VECTOR == 32
#pragma GCC optimize("no-tree-vectorize")
#elif KW_VECTOR == 128
#pragma GCC target("prefer-vector-width=128")
#elif KW_VECTOR == 256
#pragma GCC target("prefer-vector-width=256")
#elif defined(__AVX512F__)
#pragma GCC target("prefer-vector-width=512")
#endif
#endif
#pragma GCC optimize("no-trapping-math")
#pragma GCC optimize("fp-contract=off")
#define KW_FN static inline
#define KW_IN
#define KW_LOOP static inline __attribute__((always_inline))
#endif
namespace kw {
// How elements of a type are added up: a few of them in part, these in type, and what comes of it is a sum or a mean.
// Half precision is not there: convert elements to float.
template <typename T>
struct Wide;
template <>
struct Wide<float> {
  typedef double type;
  typedef float part, sum, mean;
};
template <>
struct Wide<double> {
  typedef double type, part, sum, mean;
};
struct Whole {
  typedef long long type, part, sum;
  typedef double mean;
};
template <>
struct Wide<bool> : Whole {};
template <>
struct Wide<char> : Whole {};
template <>
struct Wide<signed char> : Whole {};
template <>
struct Wide<unsigned char> : Whole {};
template <>
struct Wide<short> : Whole {};
template <>
struct Wide<unsigned short> : Whole {};
template <>
struct Wide<int> : Whole {};
template <>
struct Wide<unsigned> : Whole {};
template <>
struct Wide<long> : Whole {};
template <>
struct Wide<unsigned long> : Whole {};
template <>
struct Wide<long long> : Whole {};
template <>
struct Wide<unsigned long long> : Whole {};
}  // namespace kw
#endif
