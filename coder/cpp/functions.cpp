//@ bits
static inline int bits(float x) { return __builtin_bit_cast(int, x); }
static inline float from_bits(int i) { return __builtin_bit_cast(float, i); }
//@ scale bits
// x * 2^n for n in [-252, 254], in two steps so that results may be denormal or overflow.
static inline float scale(float x, int n) {
  const int h = n >> 1;
  return x * from_bits((h + 127) << 23) * from_bits((n - h + 127) << 23);
}
//@ power bits
// exp(x) = p 2^n with p = exp(r), |r| <= ln(2)/2, to about 1 ulp.
struct power { float p; int n; };
static inline power as_power(float x) {
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
//@ exp power scale
// Every branch is a select, so loops over it vectorise. What is 0, as it is wherever a mask was, is not
// computed: a product that underflows takes Intel's cores over a hundred cycles.
static inline float kw_exp(float x) {
  const bool none = x < -104.0f;
  x = none ? 0.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const power y = as_power(x);
  const float e = scale(y.p, y.n);
  return none ? 0.0f : e;
}
static inline double kw_exp(double x) { return __builtin_exp(x); }
//@ exp_near power
// exp(x) for |x| up to 87, where neither x nor 2^n needs care.
static inline float exp_near(float x) {
  const power y = as_power(x);
  return y.p * from_bits((y.n + 127) << 23);
}
//@ expm1 bits
// exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1), without cancellation near zero.
static inline float kw_expm1(float x) {
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
static inline double kw_expm1(double x) { return __builtin_expm1(x); }
//@ log bits
// log(x) with x = 2^k m, m in [sqrt(1/2), sqrt(2)); the polynomial is Cephes' logf.
static inline float kw_log(float x) {
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
static inline double kw_log(double x) { return __builtin_log(x); }
//@ log1p log
static inline float kw_log1p(float x) {
  const float u = 1.0f + x;
  const float r = kw_log(u) + (x - (u - 1.0f)) / u;
  return (x == __builtin_inff() || u == 0.0f) ? kw_log(u) : r;
}
static inline double kw_log1p(double x) { return __builtin_log1p(x); }
//@ tanh exp_near
// Near zero Cephes' polynomial, elsewhere 1 - 2 / (exp(2x) + 1): the quotient's error is small beside 1,
// and from 2x = 18 on it is nothing.
static inline float kw_tanh(float x) {
  const float t = __builtin_fabsf(x), s = x * x;
  const float far = __builtin_copysignf(1.0f - 2.0f / (exp_near(t > 16.0f ? 32.0f : 2.0f * t) + 1.0f), x);
  float p = -5.70498872745e-3f;
  p = __builtin_fmaf(p, s, 2.06390887954e-2f);
  p = __builtin_fmaf(p, s, -5.37397155531e-2f);
  p = __builtin_fmaf(p, s, 1.33314422036e-1f);
  p = __builtin_fmaf(p, s, -3.33332819422e-1f);
  return t >= 0.625f ? far : __builtin_fmaf(p * s, x, x);
}
static inline double kw_tanh(double x) { return __builtin_tanh(x); }
//@ erf exp_near
// Two minimax pieces, about 1 ulp: a polynomial near zero, 1 - exp of one elsewhere.
static inline float kw_erf(float x) {
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
static inline double kw_erf(double x) { return __builtin_erf(x); }
//@ stream
// Stores past the cache: worth it where an output is too large to be read back from it. Used on whole
// tiles that were computed in the first-level cache.
static inline void stream(float* to, const float* from, long long n) {
  long long i = 0;
#ifdef __AVX__
  typedef float lanes __attribute__((vector_size(32)));
  for (; i < n && ((unsigned long long)(to + i) & 31); ++i) to[i] = from[i];
  for (; i + 8 <= n; i += 8) {
    lanes v;
    __builtin_memcpy(&v, from + i, 32);
    __builtin_ia32_movntps256(to + i, v);
  }
#endif
  for (; i < n; ++i) to[i] = from[i];
}
