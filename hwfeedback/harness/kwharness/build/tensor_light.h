// What CUDA sources of load_inline use of PyTorch, in a twentieth of the text: nvcc reads torch's
// own headers three times, some twenty seconds each. A tensor here is a reference to torch's own
// TensorImpl; what it can do is done in tensor_light.cpp, which is compiled against torch's headers
// once. A source that asks for more than is here fails to compile with it, and is compiled again
// with torch's own: nothing may behave in another way than there.
#pragma once
#pragma GCC system_header  // its warnings are nobody's business
#include <cuda_runtime.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define KW_HIDDEN __attribute__((visibility("hidden")))

extern "C" {
// An `impl` that is returned is the caller's; one that is given stays so.
KW_HIDDEN void* kw_undefined();
KW_HIDDEN void kw_retain(void* impl);
KW_HIDDEN void kw_release(void* impl);
KW_HIDDEN int kw_defined(const void* impl);
KW_HIDDEN int64_t kw_dim(const void* impl);
KW_HIDDEN int64_t kw_numel(const void* impl);
KW_HIDDEN const int64_t* kw_sizes(const void* impl);
KW_HIDDEN const int64_t* kw_strides(const void* impl);
KW_HIDDEN int64_t kw_size(const void* impl, int64_t dim);
KW_HIDDEN int64_t kw_stride(const void* impl, int64_t dim);
KW_HIDDEN int64_t kw_element_size(const void* impl);
KW_HIDDEN int kw_is_contiguous(const void* impl);
KW_HIDDEN int kw_requires_grad(const void* impl);
KW_HIDDEN int kw_dtype(const void* impl);
KW_HIDDEN int kw_device(const void* impl, int* index);
KW_HIDDEN void* kw_data(const void* impl);
KW_HIDDEN void* kw_typed_data(const void* impl, int dtype, int constant);
// dtype, device and its index: -1 where nothing is asked for.
KW_HIDDEN void* kw_empty(const int64_t* sizes, int64_t n, int dtype, int device, int index);
KW_HIDDEN void* kw_zeros(const int64_t* sizes, int64_t n, int dtype, int device, int index);
KW_HIDDEN void* kw_ones(const int64_t* sizes, int64_t n, int dtype, int device, int index);
KW_HIDDEN void* kw_full(const int64_t* sizes, int64_t n, double value, int dtype, int device, int index);
KW_HIDDEN void* kw_empty_like(const void* impl, int dtype, int device, int index);
KW_HIDDEN void* kw_zeros_like(const void* impl, int dtype, int device, int index);
KW_HIDDEN void* kw_ones_like(const void* impl, int dtype, int device, int index);
KW_HIDDEN void* kw_to(const void* impl, int dtype, int device, int index);
KW_HIDDEN void* kw_contiguous(const void* impl);
KW_HIDDEN void* kw_clone(const void* impl);
KW_HIDDEN void* kw_detach(const void* impl);
KW_HIDDEN void* kw_t(const void* impl);
KW_HIDDEN void* kw_squeeze_all(const void* impl);
KW_HIDDEN void* kw_sum_all(const void* impl);
KW_HIDDEN void* kw_mean_all(const void* impl);
KW_HIDDEN void* kw_view(const void* impl, const int64_t* sizes, int64_t n);
KW_HIDDEN void* kw_reshape(const void* impl, const int64_t* sizes, int64_t n);
KW_HIDDEN void* kw_expand(const void* impl, const int64_t* sizes, int64_t n);
KW_HIDDEN void* kw_permute(const void* impl, const int64_t* dims, int64_t n);
KW_HIDDEN void* kw_transpose(const void* impl, int64_t a, int64_t b);
KW_HIDDEN void* kw_flatten(const void* impl, int64_t a, int64_t b);
KW_HIDDEN void* kw_unsqueeze(const void* impl, int64_t dim);
KW_HIDDEN void* kw_squeeze(const void* impl, int64_t dim);
KW_HIDDEN void* kw_select(const void* impl, int64_t dim, int64_t index);
KW_HIDDEN void* kw_narrow(const void* impl, int64_t dim, int64_t start, int64_t length);
KW_HIDDEN void* kw_matmul(const void* a, const void* b);
KW_HIDDEN void* kw_mm(const void* a, const void* b);
KW_HIDDEN void* kw_bmm(const void* a, const void* b);
KW_HIDDEN void* kw_addmm(const void* c, const void* a, const void* b);
KW_HIDDEN void* kw_add(const void* a, const void* b);
KW_HIDDEN void* kw_sub(const void* a, const void* b);
KW_HIDDEN void* kw_mul(const void* a, const void* b);
KW_HIDDEN void* kw_div(const void* a, const void* b);
KW_HIDDEN void kw_zero_(void* impl);
KW_HIDDEN void kw_fill_(void* impl, double value);
KW_HIDDEN void kw_copy_(void* impl, const void* from);
KW_HIDDEN double kw_item_double(const void* impl);
KW_HIDDEN int64_t kw_item_integer(const void* impl);
KW_HIDDEN void* kw_stream(int device);
KW_HIDDEN int kw_exchange_device(int device);
[[noreturn]] KW_HIDDEN void kw_fail(const char* function, const char* file, uint32_t line, const char* text);
}

// A namespace of its own, or the linker would take our functions for torch's of the same name, which
// lie in the same object.
namespace at {
inline namespace kernelwright_light {

enum class ScalarType : int8_t {
  Byte = 0, Char = 1, Short = 2, Int = 3, Long = 4, Half = 5, Float = 6, Double = 7, Bool = 11, BFloat16 = 15,
};
enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
using DeviceIndex = int8_t;

constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short;
constexpr ScalarType kInt = ScalarType::Int, kLong = ScalarType::Long, kHalf = ScalarType::Half;
constexpr ScalarType kFloat = ScalarType::Float, kDouble = ScalarType::Double, kBool = ScalarType::Bool;
constexpr ScalarType kBFloat16 = ScalarType::BFloat16;
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;

namespace light {

template <class T> struct dtype_of;
template <> struct dtype_of<uint8_t> { static constexpr ScalarType value = kByte; };
template <> struct dtype_of<int8_t> { static constexpr ScalarType value = kChar; };
template <> struct dtype_of<int16_t> { static constexpr ScalarType value = kShort; };
template <> struct dtype_of<int32_t> { static constexpr ScalarType value = kInt; };
template <> struct dtype_of<int64_t> { static constexpr ScalarType value = kLong; };
template <> struct dtype_of<float> { static constexpr ScalarType value = kFloat; };
template <> struct dtype_of<double> { static constexpr ScalarType value = kDouble; };
template <> struct dtype_of<bool> { static constexpr ScalarType value = kBool; };

}  // namespace light

class Device {
 public:
  Device(DeviceType type, DeviceIndex index = -1) : type_(type), index_(index) {}
  DeviceType type() const { return type_; }
  DeviceIndex index() const { return index_; }
  bool has_index() const { return index_ >= 0; }
  bool is_cuda() const { return type_ == DeviceType::CUDA; }
  bool is_cpu() const { return type_ == DeviceType::CPU; }
  bool operator==(const Device& o) const { return type_ == o.type_ && index_ == o.index_; }
  bool operator!=(const Device& o) const { return !(*this == o); }

 private:
  DeviceType type_;
  DeviceIndex index_;
};

class IntArrayRef {
 public:
  IntArrayRef() : data_(nullptr), size_(0) {}
  IntArrayRef(const int64_t& one) : data_(&one), size_(1) {}
  IntArrayRef(const int64_t* data, size_t size) : data_(data), size_(size) {}
  IntArrayRef(std::initializer_list<int64_t> list)
      : data_(list.size() ? list.begin() : nullptr), size_(list.size()) {}
  IntArrayRef(const std::vector<int64_t>& v) : data_(v.data()), size_(v.size()) {}
  template <size_t N> IntArrayRef(const std::array<int64_t, N>& v) : data_(v.data()), size_(N) {}
  const int64_t* data() const { return data_; }
  const int64_t* begin() const { return data_; }
  const int64_t* end() const { return data_ + size_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int64_t& operator[](size_t i) const { return data_[i]; }
  const int64_t& back() const { return data_[size_ - 1]; }
  const int64_t& front() const { return data_[0]; }
  std::vector<int64_t> vec() const { return {begin(), end()}; }
  bool equals(IntArrayRef o) const {
    if (size_ != o.size_) return false;
    for (size_t i = 0; i < size_; i++)
      if (data_[i] != o.data_[i]) return false;
    return true;
  }
  friend bool operator==(IntArrayRef a, IntArrayRef b) { return a.equals(b); }
  friend bool operator!=(IntArrayRef a, IntArrayRef b) { return !a.equals(b); }

 private:
  const int64_t* data_;
  size_t size_;
};

class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType dtype) : dtype_(int(dtype)) {}
  TensorOptions(Device device) : device_(int(device.type())), index_(device.index()) {}
  TensorOptions(DeviceType device) : device_(int(device)) {}
  TensorOptions dtype(ScalarType dtype) const {
    TensorOptions o = *this;
    o.dtype_ = int(dtype);
    return o;
  }
  template <class T> TensorOptions dtype() const { return dtype(light::dtype_of<T>::value); }
  TensorOptions device(Device device) const {
    TensorOptions o = *this;
    o.device_ = int(device.type());
    o.index_ = device.index();
    return o;
  }
  TensorOptions device(DeviceType type, DeviceIndex index = -1) const { return device(Device(type, index)); }
  int asked_dtype() const { return dtype_; }
  int asked_device() const { return device_; }
  int asked_index() const { return index_; }

 private:
  int dtype_ = -1, device_ = -1, index_ = -1;
};

// What `type()` of old sources gives.
class TypeProperties {
 public:
  TypeProperties(ScalarType type, bool on_gpu) : type_(type), on_gpu_(on_gpu) {}
  operator ScalarType() const { return type_; }
  ScalarType scalarType() const { return type_; }
  bool is_cuda() const { return on_gpu_; }

 private:
  ScalarType type_;
  bool on_gpu_;
};

class Tensor {
 public:
  Tensor() : impl_(kw_undefined()) {}
  Tensor(const Tensor& o) : impl_(o.impl_) { kw_retain(impl_); }
  Tensor(Tensor&& o) noexcept : impl_(o.impl_) { o.impl_ = kw_undefined(); }
  ~Tensor() { kw_release(impl_); }
  Tensor& operator=(const Tensor& o) & {
    kw_retain(o.impl_);
    kw_release(impl_);
    impl_ = o.impl_;
    return *this;
  }
  Tensor& operator=(Tensor&& o) & noexcept {
    std::swap(impl_, o.impl_);
    return *this;
  }
  static Tensor owning(void* impl) {
    Tensor t;
    t.impl_ = impl;
    return t;
  }
  void* impl() const { return impl_; }

  bool defined() const { return kw_defined(impl_) != 0; }
  int64_t dim() const { return kw_dim(impl_); }
  int64_t ndimension() const { return dim(); }
  int64_t numel() const { return kw_numel(impl_); }
  int64_t size(int64_t d) const { return kw_size(impl_, d); }
  int64_t stride(int64_t d) const { return kw_stride(impl_, d); }
  IntArrayRef sizes() const { return {kw_sizes(impl_), size_t(dim())}; }
  IntArrayRef strides() const { return {kw_strides(impl_), size_t(dim())}; }
  int64_t element_size() const { return kw_element_size(impl_); }
  size_t itemsize() const { return size_t(element_size()); }
  size_t nbytes() const { return size_t(numel() * element_size()); }
  bool is_contiguous() const { return kw_is_contiguous(impl_) != 0; }
  bool requires_grad() const { return kw_requires_grad(impl_) != 0; }
  ScalarType scalar_type() const { return ScalarType(kw_dtype(impl_)); }
  ScalarType dtype() const { return scalar_type(); }
  Device device() const {
    int index = -1;
    int type = kw_device(impl_, &index);
    return {DeviceType(type), DeviceIndex(index)};
  }
  TypeProperties type() const { return {scalar_type(), is_cuda()}; }
  int64_t get_device() const { return device().index(); }
  bool is_cuda() const { return device().is_cuda(); }
  bool is_cpu() const { return device().is_cpu(); }
  bool is_floating_point() const {
    ScalarType t = scalar_type();
    return t == kHalf || t == kFloat || t == kDouble || t == kBFloat16;
  }
  TensorOptions options() const { return TensorOptions().dtype(scalar_type()).device(device()); }
  bool is_same(const Tensor& o) const { return impl_ == o.impl_; }

  void* data_ptr() const { return kw_data(impl_); }
  template <class T> T* data_ptr() const {
    return static_cast<T*>(kw_typed_data(impl_, int(light::dtype_of<T>::value), 0));
  }
  template <class T> T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T> const T* const_data_ptr() const {
    return static_cast<const T*>(kw_typed_data(impl_, int(light::dtype_of<T>::value), 1));
  }
  template <class T> T item() const {
    if constexpr (std::is_floating_point_v<T>) return T(kw_item_double(impl_));
    else return T(kw_item_integer(impl_));
  }

  Tensor contiguous() const { return owning(kw_contiguous(impl_)); }
  Tensor clone() const { return owning(kw_clone(impl_)); }
  Tensor detach() const { return owning(kw_detach(impl_)); }
  Tensor t() const { return owning(kw_t(impl_)); }
  Tensor sum() const { return owning(kw_sum_all(impl_)); }
  Tensor mean() const { return owning(kw_mean_all(impl_)); }
  Tensor squeeze() const { return owning(kw_squeeze_all(impl_)); }
  Tensor squeeze(int64_t d) const { return owning(kw_squeeze(impl_, d)); }
  Tensor unsqueeze(int64_t d) const { return owning(kw_unsqueeze(impl_, d)); }
  Tensor view(IntArrayRef s) const { return owning(kw_view(impl_, s.data(), int64_t(s.size()))); }
  Tensor reshape(IntArrayRef s) const { return owning(kw_reshape(impl_, s.data(), int64_t(s.size()))); }
  Tensor expand(IntArrayRef s) const { return owning(kw_expand(impl_, s.data(), int64_t(s.size()))); }
  Tensor permute(IntArrayRef d) const { return owning(kw_permute(impl_, d.data(), int64_t(d.size()))); }
  Tensor transpose(int64_t a, int64_t b) const { return owning(kw_transpose(impl_, a, b)); }
  Tensor flatten(int64_t a = 0, int64_t b = -1) const { return owning(kw_flatten(impl_, a, b)); }
  Tensor select(int64_t d, int64_t i) const { return owning(kw_select(impl_, d, i)); }
  Tensor narrow(int64_t d, int64_t start, int64_t n) const { return owning(kw_narrow(impl_, d, start, n)); }
  Tensor to(ScalarType dtype) const { return owning(kw_to(impl_, int(dtype), -1, -1)); }
  Tensor to(Device device) const { return owning(kw_to(impl_, -1, int(device.type()), device.index())); }
  Tensor to(DeviceType type) const { return to(Device(type)); }
  Tensor to(const TensorOptions& o) const {
    return owning(kw_to(impl_, o.asked_dtype(), o.asked_device(), o.asked_index()));
  }
  Tensor cuda() const { return to(Device(kCUDA)); }
  Tensor matmul(const Tensor& o) const { return owning(kw_matmul(impl_, o.impl_)); }
  Tensor mm(const Tensor& o) const { return owning(kw_mm(impl_, o.impl_)); }
  Tensor bmm(const Tensor& o) const { return owning(kw_bmm(impl_, o.impl_)); }
  const Tensor& zero_() const {
    kw_zero_(impl_);
    return *this;
  }
  const Tensor& fill_(double value) const {
    kw_fill_(impl_, value);
    return *this;
  }
  const Tensor& copy_(const Tensor& from) const {
    kw_copy_(impl_, from.impl_);
    return *this;
  }

 private:
  void* impl_;  // torch's TensorImpl
};

inline Tensor operator+(const Tensor& a, const Tensor& b) { return Tensor::owning(kw_add(a.impl(), b.impl())); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return Tensor::owning(kw_sub(a.impl(), b.impl())); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return Tensor::owning(kw_mul(a.impl(), b.impl())); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return Tensor::owning(kw_div(a.impl(), b.impl())); }

#define KW_FACTORY(name)                                                                           \
  inline Tensor name(IntArrayRef s, const TensorOptions& o = {}) {                                 \
    return Tensor::owning(kw_##name(s.data(), int64_t(s.size()), o.asked_dtype(), o.asked_device(), \
                                    o.asked_index()));                                             \
  }                                                                                                \
  inline Tensor name##_like(const Tensor& t, const TensorOptions& o = {}) {                        \
    return Tensor::owning(                                                                         \
        kw_##name##_like(t.impl(), o.asked_dtype(), o.asked_device(), o.asked_index()));           \
  }
KW_FACTORY(empty)
KW_FACTORY(zeros)
KW_FACTORY(ones)
#undef KW_FACTORY
template <class V> Tensor full(IntArrayRef s, V value, const TensorOptions& o = {}) {
  int dtype = o.asked_dtype();  // what nobody gives a type for has that of the value
  if (dtype < 0 && std::is_integral_v<V>) dtype = int(std::is_same_v<V, bool> ? kBool : kLong);
  return Tensor::owning(
      kw_full(s.data(), int64_t(s.size()), double(value), dtype, o.asked_device(), o.asked_index()));
}
inline Tensor matmul(const Tensor& a, const Tensor& b) { return a.matmul(b); }
inline Tensor mm(const Tensor& a, const Tensor& b) { return a.mm(b); }
inline Tensor bmm(const Tensor& a, const Tensor& b) { return a.bmm(b); }
inline Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b) {
  return Tensor::owning(kw_addmm(c.impl(), a.impl(), b.impl()));
}
inline TensorOptions dtype(ScalarType t) { return TensorOptions(t); }
inline TensorOptions device(Device d) { return TensorOptions(d); }

namespace light {

inline void put(std::string& to, const char* v) { to += v; }
inline void put(std::string& to, const std::string& v) { to += v; }
inline void put(std::string& to, bool v) { to += v ? "1" : "0"; }
inline void put(std::string& to, char v) { to += v; }
inline void put(std::string& to, int v) { to += std::to_string(v); }
inline void put(std::string& to, long v) { to += std::to_string(v); }
inline void put(std::string& to, long long v) { to += std::to_string(v); }
inline void put(std::string& to, unsigned v) { to += std::to_string(v); }
inline void put(std::string& to, unsigned long v) { to += std::to_string(v); }
inline void put(std::string& to, unsigned long long v) { to += std::to_string(v); }
inline void put(std::string& to, double v) { to += std::to_string(v); }
inline void put(std::string& to, IntArrayRef v) {
  to += '[';
  for (size_t i = 0; i < v.size(); i++) to += (i ? ", " : "") + std::to_string(v[i]);
  to += ']';
}
inline void put(std::string& to, Device v) {
  to += v.is_cuda() ? "cuda" : "cpu";
  if (v.has_index()) to += ":" + std::to_string(v.index());
}
inline void put(std::string& to, ScalarType v) {
  static const char* names[] = {"Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double"};
  to += v == kBool ? "Bool" : v == kBFloat16 ? "BFloat16" : names[int(v)];
}

template <class... Parts>
[[noreturn]] void fail(const char* function, const char* file, uint32_t line, const Parts&... parts) {
  std::string text;
  (put(text, parts), ...);
  kw_fail(function, file, line, text.c_str());
}

template <class... Parts>
[[noreturn]] void unexpected(
    const char* function, const char* file, uint32_t line, const char* condition, const Parts&... parts) {
  if constexpr (sizeof...(parts) == 0)
    fail(function, file, line, "Expected ", condition, " to be true, but got false.");
  else
    fail(function, file, line, parts...);
}

inline void check(cudaError_t e, const char* function, const char* file, uint32_t line) {
  if (e == cudaSuccess) return;
  cudaGetLastError();  // as torch does: the next one is not told of it again
  fail(function, file, line, "CUDA error: ", cudaGetErrorString(e));
}

}  // namespace light

namespace cuda {

class CUDAStream {
 public:
  explicit CUDAStream(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}
  operator cudaStream_t() const { return stream_; }
  cudaStream_t stream() const { return stream_; }
  void synchronize() const { light::check(cudaStreamSynchronize(stream_), __func__, __FILE__, __LINE__); }

 private:
  cudaStream_t stream_;
};

inline CUDAStream getCurrentCUDAStream(DeviceIndex device = -1) { return CUDAStream(kw_stream(device)); }

class CUDAGuard {
 public:
  explicit CUDAGuard(DeviceIndex index) : before_(kw_exchange_device(index)) {}
  explicit CUDAGuard(Device device) : CUDAGuard(device.index()) {}
  CUDAGuard(const CUDAGuard&) = delete;
  CUDAGuard& operator=(const CUDAGuard&) = delete;
  ~CUDAGuard() { kw_exchange_device(before_); }

 private:
  int before_;
};

}  // namespace cuda
}  // namespace kernelwright_light
}  // namespace at

namespace c10 {
using at::Device;
using at::DeviceIndex;
using at::DeviceType;
using at::IntArrayRef;
using at::ScalarType;
using at::TensorOptions;
using at::kCPU;
using at::kCUDA;
using std::nullopt;
using std::optional;
namespace cuda {
using at::cuda::CUDAGuard;
using at::cuda::CUDAStream;
using at::cuda::getCurrentCUDAStream;
}  // namespace cuda
}  // namespace c10

namespace torch {
using namespace at;  // NOLINT
using at::Tensor;
using std::nullopt;
using std::optional;
namespace cuda {
using at::cuda::getCurrentCUDAStream;
}
constexpr auto kUInt8 = at::kByte;
constexpr auto kInt8 = at::kChar;
constexpr auto kInt16 = at::kShort;
constexpr auto kInt32 = at::kInt;
constexpr auto kInt64 = at::kLong;
constexpr auto kFloat16 = at::kHalf;
constexpr auto kFloat32 = at::kFloat;
constexpr auto kFloat64 = at::kDouble;
}  // namespace torch

#define TORCH_CHECK(condition, ...)                                                               \
  do {                                                                                            \
    if (!(condition))                                                                             \
      ::at::light::unexpected(__func__, __FILE__, uint32_t(__LINE__), #condition, ##__VA_ARGS__); \
  } while (0)
#define AT_ASSERTM TORCH_CHECK
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define C10_CUDA_CHECK(expression) ::at::light::check((expression), __func__, __FILE__, uint32_t(__LINE__))
#define AT_CUDA_CHECK C10_CUDA_CHECK
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())

#define KW_CASE(type, name, ...)    \
  case ::at::ScalarType::name: {    \
    using scalar_t = type;          \
    __VA_ARGS__();                  \
    break;                          \
  }
#define AT_DISPATCH_FLOATING_TYPES(type, name, ...)                                        \
  do {                                                                                     \
    const ::at::ScalarType kw_type = (type);                                               \
    switch (kw_type) {                                                                     \
      KW_CASE(float, Float, __VA_ARGS__)                                                   \
      KW_CASE(double, Double, __VA_ARGS__)                                                 \
      default:                                                                             \
        ::at::light::fail(__func__, __FILE__, uint32_t(__LINE__), "\"", name,              \
                          "\" not implemented for '", kw_type, "'");                       \
    }                                                                                      \
  } while (0)

#ifndef __CUDACC__
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

extern "C" {
KW_HIDDEN void* kw_unpack(PyObject* object);  // null where it is no tensor
KW_HIDDEN PyObject* kw_wrap(const void* impl);
}

namespace pybind11 {
namespace detail {
template <> struct type_caster<at::Tensor> {
  PYBIND11_TYPE_CASTER(at::Tensor, _("torch.Tensor"));
  bool load(handle from, bool) {
    void* impl = kw_unpack(from.ptr());
    if (!impl) return false;
    value = at::Tensor::owning(impl);
    return true;
  }
  static handle cast(const at::Tensor& t, return_value_policy, handle) { return kw_wrap(t.impl()); }
};
}  // namespace detail
}  // namespace pybind11

namespace py = pybind11;
namespace torch {
namespace py = pybind11;
template <class F> F* wrap_pybind_function(F* f) { return f; }
}  // namespace torch
#endif
