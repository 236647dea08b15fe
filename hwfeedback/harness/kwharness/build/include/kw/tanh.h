// kw::tanh(x) of float and double: as kw/exp.h's, within 1.5 units in the last place.
//
//   for (long long i = 0; i < n; ++i) y[i] = kw::tanh(x[i]);
#ifndef KW_TANH_H
#define KW_TANH_H
#include <kw/base.h>
#include <kw/exp.h>
namespace kw {
#ifdef __CUDACC__
KW_FN float tanh(float x) { return tanhf(x); }
KW_FN double tanh(double x) { return ::tanh(x); }
#else
// Near zero Cephes' polynomial, elsewhere 1 - 2 / (exp(2x) + 1): the quotient's error is small beside 1, and from
// 2x = 18 on it is nothing.
KW_FN float tanh(float x) {
  const float t = __builtin_fabsf(x), s = x * x;
  const float far = __builtin_copysignf(1.0f - 2.0f / (exp_near(t > 16.0f ? 32.0f : 2.0f * t) + 1.0f), x);
  float p = -5.70498872745e-3f;
  p = __builtin_fmaf(p, s, 2.06390887954e-2f);
  p = __builtin_fmaf(p, s, -5.37397155531e-2f);
  p = __builtin_fmaf(p, s, 1.33314422036e-1f);
  p = __builtin_fmaf(p, s, -3.33332819422e-1f);
  return t >= 0.625f ? far : __builtin_fmaf(p * s, x, x);
}
KW_FN double tanh(double x) { return __builtin_tanh(x); }
#endif
}  // namespace kw
#endif
