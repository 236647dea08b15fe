// All of kw/exp.h, kw/log.h, kw/tanh.h and kw/erf.h; what the C library has, of float and double: kw::abs, sqrt, sin,
// cos, floor, ceil, trunc, round (to even), exp2, log2, log10; and operators of float as PyTorch has them: kw::neg,
// kw::relu, kw::relu6, kw::sigmoid, kw::silu, kw::gelu, kw::gelu_tanh, kw::softplus, kw::hardsigmoid, kw::hardswish,
// kw::mish. A NaN stays NaN.
//
//   for (long long i = 0; i < n; ++i) y[i] = kw::gelu(x[i]) * kw::sigmoid(g[i]);
#ifndef KW_MATH_H
#define KW_MATH_H
#include <kw/erf.h>
#include <kw/exp.h>
#include <kw/log.h>
#include <kw/tanh.h>
#ifdef __CUDACC__
#define KW_C(name) ::name
#else
#define KW_C(name) __builtin_##name
#endif
namespace kw {
KW_LOOP float abs(float x) { return KW_C(fabsf)(x); }
KW_LOOP double abs(double x) { return KW_C(fabs)(x); }
KW_LOOP float sqrt(float x) { return KW_C(sqrtf)(x); }
KW_LOOP double sqrt(double x) { return KW_C(sqrt)(x); }
KW_LOOP float sin(float x) { return KW_C(sinf)(x); }
KW_LOOP double sin(double x) { return KW_C(sin)(x); }
KW_LOOP float cos(float x) { return KW_C(cosf)(x); }
KW_LOOP double cos(double x) { return KW_C(cos)(x); }
KW_LOOP float floor(float x) { return KW_C(floorf)(x); }
KW_LOOP double floor(double x) { return KW_C(floor)(x); }
KW_LOOP float ceil(float x) { return KW_C(ceilf)(x); }
KW_LOOP double ceil(double x) { return KW_C(ceil)(x); }
KW_LOOP float trunc(float x) { return KW_C(truncf)(x); }
KW_LOOP double trunc(double x) { return KW_C(trunc)(x); }
KW_LOOP float round(float x) { return KW_C(rintf)(x); }
KW_LOOP double round(double x) { return KW_C(rint)(x); }
KW_LOOP float exp2(float x) { return KW_C(exp2f)(x); }
KW_LOOP double exp2(double x) { return KW_C(exp2)(x); }
KW_LOOP float log2(float x) { return KW_C(log2f)(x); }
KW_LOOP double log2(double x) { return KW_C(log2)(x); }
KW_LOOP float log10(float x) { return KW_C(log10f)(x); }
KW_LOOP double log10(double x) { return KW_C(log10)(x); }
KW_LOOP float neg(float x) { return -x; }
KW_LOOP float relu(float x) { return x < 0 ? 0.0f : x; }
KW_LOOP float relu6(float x) { return 6.0f < relu(x) ? 6.0f : relu(x); }
KW_LOOP float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
KW_LOOP float silu(float x) { return x / (1.0f + exp(-x)); }
KW_LOOP float gelu(float x) { return x * 0.5f * (1.0f + erf(x * 0.707106781f)); }
KW_LOOP float gelu_tanh(float x) { return x * 0.5f * (1.0f + tanh(0.797884561f * (x + 0.044715f * (x * x * x)))); }
KW_LOOP float softplus(float x) { return x > 20.0f ? x : log1p(exp(x)); }
KW_LOOP float hardsigmoid(float x) { return relu6(x + 3.0f) / 6.0f; }
KW_LOOP float hardswish(float x) { return x * relu6(x + 3.0f) / 6.0f; }
// tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2), which is 1 long before the square overflows.
KW_LOOP float mish(float x) {
  const float e = exp(30.0f < x ? 30.0f : x), m = e * (e + 2.0f);
  return x * (m / (m + 2.0f));
}
}  // namespace kw
#undef KW_C
#endif
