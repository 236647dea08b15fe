#pragma once

void softmax_rows(const float* x, float* y, long rows, long columns);
