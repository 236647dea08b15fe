// kw::exp(x), kw::expm1(x) of float and double. On a CPU loops over them become vector code (std::exp keeps a loop
// scalar); exp is within 1 unit in the last place, expm1 within 2, and infinities and NaN come out as of the library.
//
//   for (long long i = 0; i < n; ++i) y[i] = x[i] / (1 + kw::exp(-x[i]));
//
// kw::term(x) is for terms of a sum of which one is 1, x <= 0. On a GPU it is off by two units in the last place and
// by what grows with |x|.
#ifndef KW_EXP_H
#define KW_EXP_H
#include <kw/base.h>
namespace kw {
#ifdef __CUDACC__
KW_FN float exp(float x) { return expf(x); }
KW_FN double exp(double x) { return ::exp(x); }
KW_FN float expm1(float x) { return expm1f(x); }
KW_FN double expm1(double x) { return ::expm1(x); }
KW_FN float term(float x) {
#ifdef __CUDA_ARCH__
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 1.44269504f));
  return r;
#else
  return expf(x);
#endif
}
#else
KW_FN int bits(float x) { return __builtin_bit_cast(int, x); }
KW_FN float from_bits(int i) { return __builtin_bit_cast(float, i); }
// x * 2^n for n in [-252, 254], in two steps so that results may be denormal or overflow.
KW_FN float scale(float x, int n) {
  const int h = n >> 1;
  return x * from_bits((h + 127) << 23) * from_bits((n - h + 127) << 23);
}
// exp(x) = p 2^n with p = exp(r), |r| <= ln(2)/2, to about 1 ulp.
struct Power {
  float p;
  int n;
};
KW_FN Power as_power(float x) {
  const float shifted = __builtin_fmaf(x, 1.44269504f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  float r = __builtin_fmaf(n, -0.693145752f, x);
  r = __builtin_fmaf(n, -1.42860677e-6f, r);
  float p = 1.37805939e-3f;
  p = __builtin_fmaf(p, r, 8.37312452e-3f);
  p = __builtin_fmaf(p, r, 4.16695364e-2f);
  p = __builtin_fmaf(p, r, 1.66664720e-1f);
  p = __builtin_fmaf(p, r, 4.99999851e-1f);
  p = __builtin_fmaf(p, r, 1.0f);
  p = __builtin_fmaf(p, r, 1.0f);
  return {p, bits(shifted) - 0x4b400000};
}
// Every branch is a select, so loops over it vectorise. What is 0, as it is wherever a mask was, is not computed: a
// product that underflows takes Intel's cores over a hundred cycles.
KW_FN float exp(float x) {
  const bool none = x < -104.0f;
  x = none ? 0.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const Power y = as_power(x);
  const float e = scale(y.p, y.n);
  return none ? 0.0f : e;
}
KW_FN double exp(double x) { return __builtin_exp(x); }
// exp(x) for |x| up to 87, where neither x nor 2^n needs care.
KW_FN float exp_near(float x) {
  const Power y = as_power(x);
  return y.p * from_bits((y.n + 127) << 23);
}
// exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1), without cancellation near zero.
KW_FN float expm1(float x) {
  float y = x < -18.0f ? -18.0f : x;
  y = y > 88.72284f ? 88.72284f : y;
  const float shifted = __builtin_fmaf(y, 1.44269504f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  float r = __builtin_fmaf(n, -0.693145752f, y);
  r = __builtin_fmaf(n, -1.42860677e-6f, r);
  float p = 1.98412698e-4f;
  p = __builtin_fmaf(p, r, 1.38888889e-3f);
  p = __builtin_fmaf(p, r, 8.33333333e-3f);
  p = __builtin_fmaf(p, r, 4.16666667e-2f);
  p = __builtin_fmaf(p, r, 1.66666667e-1f);
  p = __builtin_fmaf(p, r, 0.5f);
  p = __builtin_fmaf(p * r, r, r);
  const float half = from_bits((bits(shifted) - 0x4b400000 + 126) << 23);
  const float e = 2.0f * __builtin_fmaf(half, p, half - 0.5f);
  return x > 88.72284f ? __builtin_inff() : (x != x ? x : e);
}
KW_FN double expm1(double x) { return __builtin_expm1(x); }
KW_FN float term(float x) { return exp(x); }
#endif
}  // namespace kw
#endif
