// kw::log(x), kw::log1p(x) of float and double: as kw/exp.h's, within 1 and 2 units in the last place.
//
//   for (long long i = 0; i < n; ++i) y[i] = kw::log1p(kw::exp(x[i]));
#ifndef KW_LOG_H
#define KW_LOG_H
#include <kw/base.h>
#include <kw/exp.h>
namespace kw {
#ifdef __CUDACC__
KW_FN float log(float x) { return logf(x); }
KW_FN double log(double x) { return ::log(x); }
KW_FN float log1p(float x) { return log1pf(x); }
KW_FN double log1p(double x) { return ::log1p(x); }
#else
// log(x) with x = 2^k m, m in [sqrt(1/2), sqrt(2)); the polynomial is Cephes' logf.
KW_FN float log(float x) {
  const float y = x < 1.17549435e-38f ? x * 8388608.0f : x;
  const int shift = x < 1.17549435e-38f ? 23 : 0;
  const int i = bits(y) - 0x3f3504f3;
  const float k = (float)((i >> 23) - shift);
  const float f = from_bits((i & 0x7fffff) + 0x3f3504f3) - 1.0f;
  const float z = f * f;
  float p = 7.0376836292e-2f;
  p = __builtin_fmaf(p, f, -1.1514610310e-1f);
  p = __builtin_fmaf(p, f, 1.1676998740e-1f);
  p = __builtin_fmaf(p, f, -1.2420140846e-1f);
  p = __builtin_fmaf(p, f, 1.4249322787e-1f);
  p = __builtin_fmaf(p, f, -1.6668057665e-1f);
  p = __builtin_fmaf(p, f, 2.0000714765e-1f);
  p = __builtin_fmaf(p, f, -2.4999993993e-1f);
  p = __builtin_fmaf(p, f, 3.3333331174e-1f);
  p = p * f * z;
  p = __builtin_fmaf(k, -2.12194440e-4f, p);
  p = __builtin_fmaf(-0.5f, z, p);
  float r = __builtin_fmaf(k, 0.693359375f, f + p);
  r = x == 0.0f ? -__builtin_inff() : r;
  r = x < 0.0f ? __builtin_nanf("") : r;
  r = x == __builtin_inff() ? x : r;
  return x != x ? x : r;
}
KW_FN double log(double x) { return __builtin_log(x); }
KW_FN float log1p(float x) {
  const float u = 1.0f + x;
  const float r = log(u) + (x - (u - 1.0f)) / u;
  return (x == __builtin_inff() || u == 0.0f) ? log(u) : r;
}
KW_FN double log1p(double x) { return __builtin_log1p(x); }
#endif
}  // namespace kw
#endif
