"""The eight greatest by a heap, which orders equal values its own way."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.topk(x, 8, dim=-1)


def get_inputs():
    return [torch.randint(-40, 40, (32, 150)).float() / 8.0]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <algorithm>
#include <cmath>
#include <vector>

extern "C" void topk(const float* x, float* values, long long* indices, long long rows,
                     long long n, long long k) {
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * n;
        auto before = [in](long long a, long long b) {
            return std::isnan(in[a]) ? !std::isnan(in[b]) : in[a] > in[b];
        };
        std::vector<long long> heap;
        for (long long j = n - 1; j >= 0; j--) {
            heap.push_back(j);
            std::push_heap(heap.begin(), heap.end(), before);
            if ((long long)heap.size() > k) {
                std::pop_heap(heap.begin(), heap.end(), before);
                heap.pop_back();
            }
        }
        std::sort_heap(heap.begin(), heap.end(), before);
        for (long long j = 0; j < k; j++) {
            indices[i * k + j] = heap[j];
            values[i * k + j] = in[heap[j]];
        }
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = x.new_empty(x.shape[0], 8)
        indices = torch.empty(x.shape[0], 8, dtype=torch.int64)
        lib.topk(x, values, indices, *x.shape, 8)
        return values, indices
