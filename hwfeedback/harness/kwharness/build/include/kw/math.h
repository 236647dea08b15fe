// All of kw/exp.h, kw/log.h, kw/tanh.h and kw/erf.h, and activations of float as PyTorch has them: kw::relu,
// kw::sigmoid, kw::silu, kw::gelu, kw::gelu_tanh, kw::softplus. A NaN stays NaN.
//
//   for (long long i = 0; i < n; ++i) y[i] = kw::gelu(x[i]) * kw::sigmoid(g[i]);
#ifndef KW_MATH_H
#define KW_MATH_H
#include <kw/erf.h>
#include <kw/exp.h>
#include <kw/log.h>
#include <kw/tanh.h>
namespace kw {
KW_FN float relu(float x) { return x < 0 ? 0.0f : x; }
KW_FN float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
KW_FN float silu(float x) { return x / (1.0f + exp(-x)); }
KW_FN float gelu(float x) { return 0.5f * x * (1.0f + erf(x * 0.707106781f)); }
KW_FN float gelu_tanh(float x) { return 0.5f * x * (1.0f + tanh(0.797884561f * (x + 0.044715f * x * x * x))); }
KW_FN float softplus(float x) { return x > 20.0f ? x : log1p(exp(x)); }
}  // namespace kw
#endif
