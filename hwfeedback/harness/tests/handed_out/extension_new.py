import torch
from torch.utils.cpp_extension import load_inline

twice = load_inline(
    name="twice",
    cpp_sources="""
torch::Tensor twice(torch::Tensor x) {
    torch::Tensor y = torch::empty_like(x);
    const float* in = x.data_ptr<float>();
    float* out = y.data_ptr<float>();
    for (long i = 0; i < x.numel(); i++) out[i] = 2 * in[i];
    return y;
}
""",
    functions=["twice"],
)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.extension = twice

    def forward(self, x):
        return self.extension.twice(x.contiguous())
