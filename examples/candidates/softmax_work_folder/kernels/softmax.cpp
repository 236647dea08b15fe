#include "softmax.h"

#include <algorithm>
#include <cmath>

void softmax_rows(const float* x, float* y, long rows, long columns) {
#pragma omp parallel for
  for (long r = 0; r < rows; r++) {
    const float* in = x + r * columns;
    float* out = y + r * columns;
    float most = in[0], sum = 0;
    for (long i = 1; i < columns; i++) most = std::max(most, in[i]);
    for (long i = 0; i < columns; i++) sum += out[i] = std::exp(in[i] - most);
    for (long i = 0; i < columns; i++) out[i] /= sum;
  }
}
