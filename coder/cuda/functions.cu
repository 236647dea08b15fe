//@ pack
// V elements that move in one instruction where they lie aligned, 16 bytes at most.
template <int V, typename T>
struct alignas(V * sizeof(T) > 16 ? 16 : V * sizeof(T)) Pack {
  T x[V];
};
//@ load pack
template <int V, typename T>
__device__ __forceinline__ void load(T (&to)[V], const T* from) {
  const Pack<V, T> p = *reinterpret_cast<const Pack<V, T>*>(from);
#pragma unroll
  for (int j = 0; j < V; ++j) to[j] = p.x[j];
}
//@ store pack
template <int V, typename T>
__device__ __forceinline__ void store(T* to, const T (&from)[V]) {
  Pack<V, T> p;
#pragma unroll
  for (int j = 0; j < V; ++j) p.x[j] = from[j];
  *reinterpret_cast<Pack<V, T>*>(to) = p;
}
//@ exp
__device__ __forceinline__ float kw_exp(float x) { return expf(x); }
__device__ __forceinline__ double kw_exp(double x) { return exp(x); }
//@ term
// An exponential of what is not above 0, for a sum of which one term is 1. What it is off by, beside two units in the
// last place, grows with its argument, and so is lost where it is small.
__device__ __forceinline__ float kw_term(float x) {
#ifdef __CUDA_ARCH__
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 1.44269504f));
  return r;
#else
  return expf(x);
#endif
}
//@ expm1
__device__ __forceinline__ float kw_expm1(float x) { return expm1f(x); }
__device__ __forceinline__ double kw_expm1(double x) { return expm1(x); }
//@ log
__device__ __forceinline__ float kw_log(float x) { return logf(x); }
__device__ __forceinline__ double kw_log(double x) { return log(x); }
//@ log1p
__device__ __forceinline__ float kw_log1p(float x) { return log1pf(x); }
__device__ __forceinline__ double kw_log1p(double x) { return log1p(x); }
//@ tanh
__device__ __forceinline__ float kw_tanh(float x) { return tanhf(x); }
__device__ __forceinline__ double kw_tanh(double x) { return tanh(x); }
//@ erf
__device__ __forceinline__ float kw_erf(float x) { return erff(x); }
__device__ __forceinline__ double kw_erf(double x) { return erf(x); }
//@ lanes
// What another lane of a warp holds.
template <typename S>
__device__ __forceinline__ S lanes_apart(S v, int mask) {
  static_assert(sizeof(S) % 4 == 0, "words of 4 bytes");
  int words[sizeof(S) / 4];
  memcpy(words, &v, sizeof(S));
#pragma unroll
  for (int i = 0; i < (int)(sizeof(S) / 4); ++i) words[i] = __shfl_xor_sync(0xffffffffu, words[i], mask);
  memcpy(&v, words, sizeof(S));
  return v;
}
template <typename S>
__device__ __forceinline__ S lane_of(S v, int lane, int width) {
  int words[sizeof(S) / 4];
  memcpy(words, &v, sizeof(S));
#pragma unroll
  for (int i = 0; i < (int)(sizeof(S) / 4); ++i) words[i] = __shfl_sync(0xffffffffu, words[i], lane, width);
  memcpy(&v, words, sizeof(S));
  return v;
}
//@ Sum
// What threads carry of a reduction, and how two of them become one.
template <typename T>
struct Sum {
  T v;
  __device__ void merge(const Sum& b) { v += b.v; }
};
//@ added
// The sum of a vector, in pairs: of equal elements it is exact.
template <int V>
__device__ __forceinline__ float added(const float (&x)[V]) {
  float sum[V];
#pragma unroll
  for (int j = 0; j < V; ++j) sum[j] = x[j];
#pragma unroll
  for (int half = V / 2; half > 0; half /= 2) {
#pragma unroll
    for (int j = 0; j < half; ++j) sum[j] += sum[j + half];
  }
  return sum[0];
}
//@ Product
template <typename T>
struct Product {
  T v;
  __device__ void merge(const Product& b) { v *= b.v; }
};
//@ Most
// The largest, or NaN where there was one.
template <typename T>
struct Most {
  T v;
  __device__ void add(T x) { v = x > v || x != x ? x : v; }
  __device__ void merge(const Most& b) { add(b.v); }
};
//@ Least
template <typename T>
struct Least {
  T v;
  __device__ void add(T x) { v = x < v || x != x ? x : v; }
  __device__ void merge(const Least& b) { add(b.v); }
};
//@ Top
// The largest, NaN left aside.
template <typename T>
struct Top {
  T v;
  __device__ void add(T x) { v = x > v ? x : v; }
  __device__ void merge(const Top& b) { add(b.v); }
};
//@ FirstMost
// Where the largest is: the first of equals, and a NaN before anything else. Elements are added in their order, from
// -infinity at the largest I on, which stands for the first element.
template <typename T, typename I>
struct FirstMost {
  T v;
  I at;
  __device__ void add(T x, I i) {
    if (x > v || (x != x && v == v)) v = x, at = i;
  }
  __device__ void merge(const FirstMost& b) {
    const bool nan = b.v != b.v, had = v != v;
    if (nan ? !had || b.at < at : !had && (b.v > v || (b.v == v && b.at < at))) *this = b;
  }
};
//@ FirstLeast
template <typename T, typename I>
struct FirstLeast {
  T v;
  I at;
  __device__ void add(T x, I i) {
    if (x < v || (x != x && v == v)) v = x, at = i;
  }
  __device__ void merge(const FirstLeast& b) {
    const bool nan = b.v != b.v, had = v != v;
    if (nan ? !had || b.at < at : !had && (b.v < v || (b.v == v && b.at < at))) *this = b;
  }
};
//@ TopSum exp lanes
// The largest, and the sum of exponentials under it (Milakov and Gimelshein 2018). Under a largest of -inf
// differences would be NaN: 0 stands for it then.
template <typename T>
struct TopSum {
  T v;
  double s;
  __device__ T under() const { return v == -INFINITY ? T(0) : v; }
  // Stands under what is larger. That is seldom after the first few elements.
  __device__ void raise(T top) {
    if (top > v) s *= kw_exp(v - top), v = top;
  }
  __device__ void merge(const TopSum& b) {
    TopSum r = {b.v > v ? b.v : v, 0};
    r.s = s * kw_exp(v - r.under()) + b.s * kw_exp(b.v - r.under());
    *this = r;
  }
};
// All of W lanes: first the largest, then what each has under that.
template <int W, typename T>
__device__ __forceinline__ TopSum<T> lanes_of(TopSum<T> v) {
  TopSum<T> r = v;
#pragma unroll
  for (int mask = W / 2; mask > 0; mask /= 2) {
    const T other = lanes_apart(r.v, mask);
    r.v = other > r.v ? other : r.v;
  }
  r.s = v.s * kw_exp(v.v - r.under());
#pragma unroll
  for (int mask = W / 2; mask > 0; mask /= 2) r.s += lanes_apart(r.s, mask);
  return r;
}
//@ one_over
// 1 / n of a count, by an approximate reciprocal and a step of Newton's: a division of doubles has a branch, over which
// no load moves.
__device__ __forceinline__ double one_over(double n) {
#ifdef __CUDA_ARCH__
  float r;
  asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"((float)n));
#else
  const float r = 1.0f / (float)n;
#endif
  return r * (2.0 - n * r);
}
//@ Spread lanes one_over
// The mean of n elements, and the sum of squares about it (Chan, Golub and LeVeque 1979).
template <typename T>
struct Spread {
  double n, v, s;
  __device__ void merge(const Spread& b) {
    if (b.n == 0) return;
    const double all = n + b.n, apart = b.v - v, share = b.n * one_over(all);
    s += b.s + apart * apart * n * share;
    v += apart * share;
    n = all;
  }
};
// All of W lanes: first the mean, then what each is apart from that.
template <int W, typename T>
__device__ __forceinline__ Spread<T> lanes_of(Spread<T> v) {
  double n = v.n, sum = v.n * v.v;
#pragma unroll
  for (int mask = W / 2; mask > 0; mask /= 2) {
    n += lanes_apart(n, mask);
    sum += lanes_apart(sum, mask);
  }
  const double mean = n > 0 ? sum * one_over(n) : 0, apart = v.v - mean;
  double s = v.n > 0 ? v.s + apart * apart * v.n : 0;
#pragma unroll
  for (int mask = W / 2; mask > 0; mask /= 2) s += lanes_apart(s, mask);
  return {n, mean, s};
}
//@ across lanes
template <int W, typename S>
__device__ __forceinline__ S lanes_of(S v) {
#pragma unroll
  for (int mask = W / 2; mask > 0; mask /= 2) v.merge(lanes_apart(v, mask));
  return v;
}
// Merges what T threads side by side hold; each of them gets the same. All threads of the block take part.
template <int T, typename S>
__device__ __forceinline__ S across(S v) {
  constexpr int W = T < 32 ? T : 32;
  v = lanes_of<W>(v);
  if (T <= 32) return lane_of(v, 0, W);
  constexpr int parts = T / 32 < 1 ? 1 : T / 32;
  __shared__ S part[32];
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = lanes_of<parts>(part[threadIdx.x / T * parts + threadIdx.x % parts]);
  __syncthreads();
  return lane_of(v, 0, 32);
}
//@ down
// Merges what Y threads hold that are X apart; each of them gets the same.
template <int X, int Y, typename S>
__device__ __forceinline__ S down(S v) {
  if (Y == 1) return v;
  __shared__ S part[Y][X];
  const int x = threadIdx.x % X, y = threadIdx.x / X;
  part[y][x] = v;
  __syncthreads();
#pragma unroll
  for (int half = Y / 2; half > 0; half /= 2) {
    if (y < half) {
      S own = part[y][x];
      own.merge(part[y + half][x]);
      part[y][x] = own;
    }
    __syncthreads();
  }
  v = part[0][x];
  __syncthreads();
  return v;
}
//@ before
// What the threads before this one hold of each of K tiles, merged in their order, and what all of them hold.
template <int T, int K, typename S>
__device__ __forceinline__ void before(const S (&v)[K], S none, S (&earlier)[K], S (&all)[K]) {
  __shared__ S part[K][T / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto from = [&](S run, int apart) {
    int words[sizeof(S) / 4];
    memcpy(words, &run, sizeof(S));
#pragma unroll
    for (int i = 0; i < (int)(sizeof(S) / 4); ++i) words[i] = __shfl_up_sync(0xffffffffu, words[i], apart);
    memcpy(&run, words, sizeof(S));
    return run;
  };
  S run[K];
#pragma unroll
  for (int k = 0; k < K; ++k) run[k] = v[k];
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      S other = from(run[k], apart);
      if (lane >= apart) {
        other.merge(run[k]);
        run[k] = other;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (lane == 31) part[k][warp] = run[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    S sum = none;
    earlier[k] = none;
#pragma unroll
    for (int w = 0; w < T / 32; ++w) {
      if (w == warp) earlier[k] = sum;
      sum.merge(part[k][w]);
    }
    all[k] = sum;
    const S inside = from(run[k], 1);
    if (lane > 0) earlier[k].merge(inside);
  }
  __syncthreads();
}
//@ meet
// What another block left. Only volatile loads are sure to look.
template <typename S>
__device__ __forceinline__ S fresh(const S* from) {
  static_assert(sizeof(S) % 4 == 0, "words of 4 bytes");
  int words[sizeof(S) / 4];
#pragma unroll
  for (int i = 0; i < (int)(sizeof(S) / 4); ++i) words[i] = reinterpret_cast<const volatile int*>(from)[i];
  S v;
  memcpy(&v, words, sizeof(S));
  return v;
}
// Waits until blocks have come here so many times; what they wrote before is then there to be read.
__device__ __forceinline__ void meet(unsigned* arrived, unsigned times) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    while (*reinterpret_cast<const volatile unsigned*>(arrived) < times) __nanosleep(20);
    __threadfence();
  }
  __syncthreads();
}
//@ devices
// Of so many devices of a process it is kept what they can do.
constexpr int devices = 64;
//@ begins
// Lets blocks of the next kernel come, and waits for what the kernels before have written. A compiler may put before it
// what is read by const and __restrict__, so that what these kernels write is read by neither.
__device__ __forceinline__ void begins() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
//@ follow devices
// Launches a kernel that begins() while the one before may still be at work (programmatic dependent launch), where both
// the device and what the kernel was compiled for know that; else as any other. known: 1 where they do, -1 where not.
template <typename... P, typename... A>
static void follow(void (*kernel)(P...), long long blocks, int threads, cudaStream_t stream, int (&known)[devices], A... given) {
  int device = 0, able = 0;
  cudaGetDevice(&device);
  if (device < devices) able = known[device];
  if (able == 0) {
    cudaFuncAttributes compiled = {};
    int major = 0;
    cudaFuncGetAttributes(&compiled, reinterpret_cast<const void*>(kernel));
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    able = compiled.ptxVersion >= 90 && major >= 9 ? 1 : -1;
    if (device < devices) known[device] = able;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((unsigned)blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = able > 0 ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, given...);
}
//@ there devices
// How many blocks of a kernel with so much shared memory are on the device at once.
template <typename K>
static int there(K* kernel, int threads, int bytes, int (&known)[devices]) {
  int device = 0, each = 0, all = 0;
  cudaGetDevice(&device);
  if (device < devices && known[device] > 0) return known[device];
  cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, reinterpret_cast<const void*>(kernel), threads, bytes);
  cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device);
  if (device < devices) known[device] = each * all;
  return each * all;
}
//@ together
// Launches teams of blocks that are all there at once, so that they may wait for each other: under a tool that needs
// room of its own fewer than it was said that there is place for.
template <typename... P, typename... A>
static void together(void (*kernel)(P...), long long teams, int size, int threads, int bytes, cudaStream_t stream, A... given) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  for (;; teams /= 2) {
    config.gridDim = dim3((unsigned)(teams * size));
    if (cudaLaunchKernelEx(&config, kernel, given...) != cudaErrorCooperativeLaunchTooLarge || teams == 1) return;
    cudaGetLastError();
  }
}
//@ copy_ahead
// Begins to copy V elements to shared memory; they are there when this thread has waited for its copies.
template <int V, typename T>
__device__ __forceinline__ void copy_ahead(T* to, const T* from) {
  constexpr int bytes = V * sizeof(T), each = bytes < 16 ? bytes : 16;
  if constexpr (each < 4) {
#pragma unroll
    for (int j = 0; j < V; ++j) to[j] = from[j];
  } else {
#pragma unroll
    for (int i = 0; i < bytes / each; ++i) __pipeline_memcpy_async(to + i * (each / sizeof(T)), from + i * (each / sizeof(T)), each);
  }
}
//@ most
// The larger of two, or NaN where one is.
template <typename T>
__device__ __forceinline__ T most(T a, T b) {
  return a > b || a != a ? a : b;
}
#ifdef __CUDA_ARCH__
__device__ __forceinline__ float most(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
#endif
