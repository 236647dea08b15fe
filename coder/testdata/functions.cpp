#include <kw/math.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

// The error in units of the last place of a float at the exact value, which may be denormal.
static double ulps(float got, double want) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got) ? 0 : 1e9;
  if (std::isinf((float)want) || std::isinf(got)) return (float)want == got ? 0 : std::fabs(want) > 3.4e38 && std::fabs(got) > 3.4e38 ? 1 : 1e9;
  int e;
  std::frexp(want, &e);
  return std::fabs(got - want) / std::ldexp(1.0, std::max(e - 24, -149));
}

template <class F, class G> static void check(const char* name, F f, G exact) {
  double worst = 0;
  float at = 0;
  auto one = [&](float x) {
    const double u = ulps(f(x), exact(x));
    if (u > worst) worst = u, at = x;
  };
  for (unsigned long long i = 0; i < 1ull << 32; i += 1009) {
    const unsigned bits = (unsigned)i;
    float x;
    std::memcpy(&x, &bits, 4);
    one(x);
  }
  const float inf = std::numeric_limits<float>::infinity();
  for (float edge : {0.0f, 1.0f, 0.625f, 0.927734375f, 4.0f, 16.0f, 18.0f, 32.0f, 87.0f, 87.336544f, 88.72284f, 89.0f, 103.27893f, 103.97208f, 104.0f, 1.17549435e-38f, 3.4028235e38f, inf})
    for (float x : {edge, std::nextafter(edge, inf), std::nextafter(edge, -inf)}) one(x), one(-x);
  one(std::nanf(""));
  std::printf("%s %.3f %.9g\n", name, worst, at);
}

int main() {
  check("exp", [](float x) { return kw::exp(x); }, [](double x) { return std::exp(x); });
  check("expm1", [](float x) { return kw::expm1(x); }, [](double x) { return std::expm1(x); });
  check("log", [](float x) { return kw::log(x); }, [](double x) { return std::log(x); });
  check("log1p", [](float x) { return kw::log1p(x); }, [](double x) { return std::log1p(x); });
  check("tanh", [](float x) { return kw::tanh(x); }, [](double x) { return std::tanh(x); });
  check("erf", [](float x) { return kw::erf(x); }, [](double x) { return std::erf(x); });
}
