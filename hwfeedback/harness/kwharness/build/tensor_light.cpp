// What tensor_light.h declares, by torch's own headers. Compiled once for a release of PyTorch and
// linked into each object that was compiled with that header.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/types.h>

namespace {

using Impl = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// A tensor here is what it is there: one pointer.
static_assert(sizeof(at::Tensor) == sizeof(void*));
const at::Tensor& of(const void* const& impl) { return reinterpret_cast<const at::Tensor&>(impl); }

void* give(at::Tensor t) { return t.unsafeReleaseTensorImpl(); }

std::optional<at::ScalarType> type(int dtype) {
  if (dtype < 0) return std::nullopt;
  return static_cast<at::ScalarType>(dtype);
}

std::optional<at::Device> place(int device, int index) {
  if (device < 0) return std::nullopt;
  return at::Device(static_cast<at::DeviceType>(device), static_cast<at::DeviceIndex>(index));
}

at::TensorOptions options(int dtype, int device, int index) {
  return at::TensorOptions().dtype(type(dtype)).device(place(device, index));
}

at::IntArrayRef list(const int64_t* values, int64_t n) { return {values, static_cast<size_t>(n)}; }

}  // namespace

#define GIVES(name, parameters, expression) \
  __attribute__((visibility("hidden"))) void* name parameters { return give(expression); }
#define SAYS(type, name, parameters, expression) \
  __attribute__((visibility("hidden"))) type name parameters { return expression; }
#define DOES(name, parameters, statement) \
  __attribute__((visibility("hidden"))) void name parameters { statement; }

extern "C" {

GIVES(kw_undefined, (), at::Tensor())
DOES(kw_retain, (void* impl), at::Tensor(of(impl)).unsafeReleaseTensorImpl())
DOES(kw_release, (void* impl), reinterpret_cast<at::Tensor*>(&impl)->~Tensor())
SAYS(int, kw_defined, (const void* impl), of(impl).defined())
SAYS(int64_t, kw_dim, (const void* impl), of(impl).dim())
SAYS(int64_t, kw_numel, (const void* impl), of(impl).numel())
SAYS(const int64_t*, kw_sizes, (const void* impl), of(impl).sizes().data())
SAYS(const int64_t*, kw_strides, (const void* impl), of(impl).strides().data())
SAYS(int64_t, kw_size, (const void* impl, int64_t dim), of(impl).size(dim))
SAYS(int64_t, kw_stride, (const void* impl, int64_t dim), of(impl).stride(dim))
SAYS(int64_t, kw_element_size, (const void* impl), of(impl).element_size())
SAYS(int, kw_is_contiguous, (const void* impl), of(impl).is_contiguous())
SAYS(int, kw_requires_grad, (const void* impl), of(impl).requires_grad())
SAYS(int, kw_dtype, (const void* impl), static_cast<int>(of(impl).scalar_type()))

__attribute__((visibility("hidden"))) int kw_device(const void* impl, int* index) {
  at::Device device = of(impl).device();
  *index = device.index();
  return static_cast<int>(device.type());
}

SAYS(void*, kw_data, (const void* impl), of(impl).data_ptr())

__attribute__((visibility("hidden"))) void* kw_typed_data(const void* impl, int dtype, int constant) {
  const at::Tensor& t = of(impl);
  // By torch's own check, with its own words.
  switch (static_cast<at::ScalarType>(dtype)) {
#define TYPED(type, name)                                                      \
  case at::ScalarType::name:                                                   \
    return constant ? const_cast<type*>(t.const_data_ptr<type>()) : t.data_ptr<type>();
    TYPED(uint8_t, Byte)
    TYPED(int8_t, Char)
    TYPED(int16_t, Short)
    TYPED(int, Int)
    TYPED(int64_t, Long)
    TYPED(float, Float)
    TYPED(double, Double)
    TYPED(bool, Bool)
#undef TYPED
    default:
      TORCH_CHECK(false, "no pointer to elements of type ", dtype);
  }
}

GIVES(kw_empty, (const int64_t* s, int64_t n, int t, int d, int i), torch::empty(list(s, n), options(t, d, i)))
GIVES(kw_zeros, (const int64_t* s, int64_t n, int t, int d, int i), torch::zeros(list(s, n), options(t, d, i)))
GIVES(kw_ones, (const int64_t* s, int64_t n, int t, int d, int i), torch::ones(list(s, n), options(t, d, i)))
GIVES(kw_full, (const int64_t* s, int64_t n, double v, int t, int d, int i),
      torch::full(list(s, n), v, options(t, d, i)))
GIVES(kw_empty_like, (const void* impl, int t, int d, int i), torch::empty_like(of(impl), options(t, d, i)))
GIVES(kw_zeros_like, (const void* impl, int t, int d, int i), torch::zeros_like(of(impl), options(t, d, i)))
GIVES(kw_ones_like, (const void* impl, int t, int d, int i), torch::ones_like(of(impl), options(t, d, i)))
GIVES(kw_to, (const void* impl, int t, int d, int i), of(impl).to(options(t, d, i)))
GIVES(kw_contiguous, (const void* impl), of(impl).contiguous())
GIVES(kw_clone, (const void* impl), of(impl).clone())
GIVES(kw_detach, (const void* impl), of(impl).detach())
GIVES(kw_t, (const void* impl), of(impl).t())
GIVES(kw_squeeze_all, (const void* impl), of(impl).squeeze())
GIVES(kw_sum_all, (const void* impl), of(impl).sum())
GIVES(kw_mean_all, (const void* impl), of(impl).mean())
GIVES(kw_view, (const void* impl, const int64_t* s, int64_t n), of(impl).view(list(s, n)))
GIVES(kw_reshape, (const void* impl, const int64_t* s, int64_t n), of(impl).reshape(list(s, n)))
GIVES(kw_expand, (const void* impl, const int64_t* s, int64_t n), of(impl).expand(list(s, n)))
GIVES(kw_permute, (const void* impl, const int64_t* s, int64_t n), of(impl).permute(list(s, n)))
GIVES(kw_transpose, (const void* impl, int64_t a, int64_t b), of(impl).transpose(a, b))
GIVES(kw_flatten, (const void* impl, int64_t a, int64_t b), of(impl).flatten(a, b))
GIVES(kw_unsqueeze, (const void* impl, int64_t dim), of(impl).unsqueeze(dim))
GIVES(kw_squeeze, (const void* impl, int64_t dim), of(impl).squeeze(dim))
GIVES(kw_select, (const void* impl, int64_t dim, int64_t index), of(impl).select(dim, index))
GIVES(kw_narrow, (const void* impl, int64_t dim, int64_t start, int64_t n), of(impl).narrow(dim, start, n))
GIVES(kw_matmul, (const void* a, const void* b), at::matmul(of(a), of(b)))
GIVES(kw_mm, (const void* a, const void* b), at::mm(of(a), of(b)))
GIVES(kw_bmm, (const void* a, const void* b), at::bmm(of(a), of(b)))
GIVES(kw_addmm, (const void* c, const void* a, const void* b), at::addmm(of(c), of(a), of(b)))
GIVES(kw_add, (const void* a, const void* b), of(a) + of(b))
GIVES(kw_sub, (const void* a, const void* b), of(a) - of(b))
GIVES(kw_mul, (const void* a, const void* b), of(a) * of(b))
GIVES(kw_div, (const void* a, const void* b), of(a) / of(b))
DOES(kw_zero_, (void* impl), of(impl).zero_())
DOES(kw_fill_, (void* impl, double value), of(impl).fill_(value))
DOES(kw_copy_, (void* impl, const void* from), of(impl).copy_(of(from)))
SAYS(double, kw_item_double, (const void* impl), of(impl).item<double>())
SAYS(int64_t, kw_item_integer, (const void* impl), of(impl).item<int64_t>())
SAYS(void*, kw_stream, (int device),
     c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream())

__attribute__((visibility("hidden"))) int kw_exchange_device(int device) {
  return c10::cuda::ExchangeDevice(static_cast<c10::DeviceIndex>(device));
}

[[noreturn]] __attribute__((visibility("hidden"))) void kw_fail(
    const char* function, const char* file, uint32_t line, const char* text) {
  throw c10::Error({function, file, line}, text);
}

__attribute__((visibility("hidden"))) void* kw_unpack(PyObject* object) {
  if (!THPVariable_Check(object)) return nullptr;
  return give(THPVariable_Unpack(object));
}

__attribute__((visibility("hidden"))) PyObject* kw_wrap(const void* impl) {
  return THPVariable_Wrap(of(impl));
}

}  // extern "C"
