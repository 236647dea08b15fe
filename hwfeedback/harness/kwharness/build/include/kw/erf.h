// kw::erf(x) of float and double: as kw/exp.h's, within 1 unit in the last place.
//
//   for (long long i = 0; i < n; ++i) y[i] = 0.5f * x[i] * (1 + kw::erf(x[i] * 0.70710678f));  // gelu
#ifndef KW_ERF_H
#define KW_ERF_H
#include <kw/base.h>
#include <kw/exp.h>
namespace kw {
#ifdef __CUDACC__
KW_FN float erf(float x) { return erff(x); }
KW_FN double erf(double x) { return ::erf(x); }
#else
// Two minimax pieces, about 1 ulp: a polynomial near zero, 1 - exp of one elsewhere.
KW_FN float erf(float x) {
  const float t = __builtin_fabsf(x), s = x * x;
  const float c = t > 4.0f ? 4.0f : t;
  float r = __builtin_fmaf(-1.72853470e-5f, c, 3.83197126e-4f);
  const float u = __builtin_fmaf(-3.88396438e-3f, c, 2.42546219e-2f);
  r = __builtin_fmaf(r, c * c, u);
  r = __builtin_fmaf(r, c, -1.06777877e-1f);
  r = __builtin_fmaf(r, c, -6.34846687e-1f);
  r = __builtin_fmaf(r, c, -1.28717512e-1f);
  r = __builtin_fmaf(r, c, -c);
  const float far = __builtin_copysignf(1.0f - exp_near(r), x);
  float p = -5.96761703e-4f;
  p = __builtin_fmaf(p, s, 4.99119423e-3f);
  p = __builtin_fmaf(p, s, -2.67681349e-2f);
  p = __builtin_fmaf(p, s, 1.12819925e-1f);
  p = __builtin_fmaf(p, s, -3.76125336e-1f);
  p = __builtin_fmaf(p, s, 1.28379166e-1f);
  return t > 0.927734375f ? far : __builtin_fmaf(p, x, x);
}
KW_FN double erf(double x) { return __builtin_erf(x); }
#endif
}  // namespace kw
#endif
