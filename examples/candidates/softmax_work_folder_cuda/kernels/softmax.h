#pragma once

#include <cuda_runtime.h>

void softmax_rows(const float* x, float* y, long rows, long columns, cudaStream_t stream);
