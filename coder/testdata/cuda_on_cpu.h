// Enough of CUDA to run a candidate's kernels on a CPU, for tests of what they compute: each thread of a block
// is a fiber, which waits at barriers and shuffles; blocks run one after the other, those of a cooperative launch at
// once, each in a thread of the system. A thread that reads what another one wrote without a barrier between them may
// see it or not, as on a GPU: the order of threads in a warp changes from block to block.
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <ucontext.h>

#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __CUDACC__ 1
#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __restrict__

typedef void* cudaStream_t;

struct Three {
  unsigned x = 0, y = 0, z = 0;
};
static thread_local Three blockIdx, blockDim, gridDim;

namespace emulated {

enum State { running, at_warp, at_block, done };

constexpr int most = 1024;
constexpr size_t stack_bytes = 64 << 10;

// What is not exact is off by one unit in the last place more: up or down, by its own last bit.
static inline float less_exact(float x, bool exact) {
  if (exact || !(x - x == 0)) return x;
  int bits;
  memcpy(&bits, &x, sizeof x);
  return nextafterf(x, bits & 1 ? INFINITY : -INFINITY);
}
static inline float quotient(float a, float b) {
  const float q = a / b;
  return less_exact(q, (double)q * b == a);
}
static inline float root(float x) {
  const float r = sqrtf(x);
  return less_exact(r, (double)r * r == x);
}

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

// Contexts begin a fiber, jumps go on with it: a jump asks nothing of the system.
struct Fiber {
  jmp_buf at;
  State state;
  int words[1];  // what it shows to its warp
  std::vector<Copy> copies;
};

// Of a thread of the system: the block that it runs.
static thread_local Fiber fibers[most];
static thread_local char* stacks = nullptr;
static thread_local int begun = 0, now = 0, size = 0;
static thread_local ucontext_t scheduler, first;
static thread_local jmp_buf back;
static thread_local void (*body)(void*) = nullptr;
static thread_local void* arguments = nullptr;
static thread_local unsigned char* dynamic = nullptr;  // shared memory whose size the launch says

static void leave(State s) {
  Fiber& f = fibers[now];
  f.state = s;
  if (_setjmp(f.at) == 0) _longjmp(back, 1);
}
static void enter() {
  leave(done);  // until there is something to do
  for (;;) {
    body(arguments);
    leave(done);
  }
}
static void wait(State at) { leave(at); }

// Lets those go on who wait where everybody who still runs has come.
static bool release() {
  bool any = false, all_at_block = true;
  for (int t = 0; t < size; ++t) all_at_block = all_at_block && (fibers[t].state == at_block || fibers[t].state == done);
  for (int warp = 0; warp < size; warp += 32) {
    bool met = true;
    for (int t = warp; t < warp + 32 && t < size; ++t) met = met && fibers[t].state == at_warp;
    for (int t = warp; t < warp + 32 && t < size; ++t) {
      if ((met && fibers[t].state == at_warp) || (all_at_block && fibers[t].state == at_block)) {
        fibers[t].state = running;
        any = true;
      }
    }
  }
  return any;
}

static void run_block(long long b) {
  blockIdx.x = b;
  for (int t = 0; t < size; ++t) fibers[t].state = running;
  for (;;) {
    bool left = false;
    for (int n = 0; n < size; ++n) {
      now = b % 2 ? size - 1 - n : n;
      if (fibers[now].state == running && _setjmp(back) == 0) _longjmp(fibers[now].at, 1);
      left = left || fibers[now].state != done;
    }
    if (!left) break;
    if (!release()) {
      fprintf(stderr, "threads of a block wait for each other at different places\n");
      abort();
    }
  }
}

// Makes this thread of the system ready for blocks of a launch.
static void prepare(long long blocks, int count, int bytes) {
  if (count % 32 != 0 || count > most || blocks <= 0 || blocks > 0x7fffffff) {
    fprintf(stderr, "a launch of %lld blocks of %d threads\n", blocks, count);
    abort();
  }
  if (!stacks) stacks = static_cast<char*>(malloc(most * stack_bytes));
  for (; begun < count; ++begun) {
    getcontext(&first);
    first.uc_stack.ss_sp = stacks + begun * stack_bytes;
    first.uc_stack.ss_size = stack_bytes;
    first.uc_link = nullptr;
    makecontext(&first, enter, 0);
    now = begun;
    if (_setjmp(back) == 0) swapcontext(&scheduler, &first);
  }
  size = count;
  gridDim.x = blocks;
  blockDim.x = count;
  free(dynamic);
  dynamic = bytes ? static_cast<unsigned char*>(aligned_alloc(16, (bytes + 15) / 16 * 16)) : nullptr;
  if (bytes) memset(dynamic, 0xff, bytes);
}

template <typename F>
void take(F& f) {
  body = [](void* p) { (*static_cast<F*>(p))(); };
  arguments = &f;
}

template <typename F>
void launch(long long blocks, int count, int bytes, F f) {
  prepare(blocks, count, bytes);
  take(f);
  for (long long b = 0; b < blocks; ++b) run_block(b);
}

// How many blocks of a cooperative launch there are at most: of each of so many multiprocessors, so many.
constexpr int multiprocessors = 6, beside = 2;

template <typename F>
struct Launch {
  F f;
  long long blocks;
  int count, bytes;
  long long block;
};

template <typename F>
void* run_launched(void* launch) {
  Launch<F> l = *static_cast<Launch<F>*>(launch);
  prepare(l.blocks, l.count, l.bytes);
  take(l.f);
  run_block(l.block);
  free(stacks);
  free(dynamic);
  return nullptr;
}

// By pthreads, for <thread> takes a compiler longer than all the rest.
template <typename F>
void launch_at_once(long long blocks, int count, int bytes, F f) {
  std::vector<Launch<F>> each;
  std::vector<pthread_t> all(blocks);
  for (long long b = 0; b < blocks; ++b) each.push_back({f, blocks, count, bytes, b});
  for (long long b = 0; b < blocks; ++b) {
    if (pthread_create(&all[b], nullptr, run_launched<F>, &each[b])) abort();
  }
  for (pthread_t t : all) pthread_join(t, nullptr);
}

static inline Three thread_index() { return {static_cast<unsigned>(now), 0, 0}; }

template <typename T>
T shuffled(T v, int from) {
  static_assert(sizeof(T) == 4, "words of 4 bytes");
  Fiber& f = fibers[now];
  memcpy(&f.words[0], &v, 4);
  const int warp = now / 32 * 32;
  wait(at_warp);
  T got;
  memcpy(&got, &fibers[from < 0 ? now : warp + from].words[0], 4);
  wait(at_warp);
  return got;
}

static inline int lane() { return now % 32; }

}  // namespace emulated

template <typename T>
T __shfl_xor_sync(unsigned, T v, int mask) { return emulated::shuffled(v, emulated::lane() ^ mask); }
template <typename T>
T __shfl_sync(unsigned, T v, int lane, int width = 32) {
  return emulated::shuffled(v, emulated::lane() / width * width + lane % width);
}
template <typename T>
T __shfl_up_sync(unsigned, T v, int apart) {
  return emulated::shuffled(v, emulated::lane() >= apart ? emulated::lane() - apart : -1);
}

#define __threadfence() __sync_synchronize()
static inline unsigned atomicAdd(unsigned* to, unsigned n) { return __sync_fetch_and_add(to, n); }
static inline void __nanosleep(unsigned) { sched_yield(); }

// Copies are done when their thread waits for them, and not before; in every other block at once, and not later.
static inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes) {
  if (blockIdx.x % 2) {
    memcpy(to, from, bytes);
    return;
  }
  emulated::fibers[emulated::now].copies.push_back({to, from, bytes});
}
static inline void __pipeline_commit() {}
static inline void __pipeline_wait_prior(int) {
  for (const emulated::Copy& c : emulated::fibers[emulated::now].copies) memcpy(c.to, c.from, c.bytes);
  emulated::fibers[emulated::now].copies.clear();
}

struct dim3 {
  unsigned x;
  explicit dim3(unsigned n = 1) : x(n) {}
};
enum { cudaSuccess, cudaErrorCooperativeLaunchTooLarge };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaDevAttrMultiProcessorCount, cudaDevAttrComputeCapabilityMajor };
enum { cudaLaunchAttributeCooperative, cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
  int id;
  struct {
    int cooperative, programmaticStreamSerializationAllowed;
  } val;
};
struct cudaFuncAttributes {
  int ptxVersion;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  int dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  int numAttrs;
};
static inline int cudaGetLastError() { return cudaSuccess; }
static inline int cudaGetDevice(int* device) { return *device = 0; }
static inline int cudaFuncSetAttribute(const void*, int, int) { return 0; }
static inline int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int, int) {
  *n = emulated::beside;
  return 0;
}
static inline int cudaDeviceGetAttribute(int* n, int which, int) {
  *n = which == cudaDevAttrMultiProcessorCount ? emulated::multiprocessors : 9;
  return 0;
}
static inline int cudaFuncGetAttributes(cudaFuncAttributes* of, const void*) {
  of->ptxVersion = 90;
  return 0;
}
static inline int cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  memset(at, value, bytes);
  return 0;
}
template <typename... P, typename... A>
int cudaLaunchKernelEx(const cudaLaunchConfig_t* c, void (*kernel)(P...), A... given) {
  if (c->numAttrs == 0 || c->attrs->id != cudaLaunchAttributeCooperative) {
    emulated::launch(c->gridDim.x, c->blockDim.x, c->dynamicSmemBytes, [=] { kernel(given...); });
    return 0;
  }
  if (c->gridDim.x > emulated::multiprocessors * emulated::beside) return cudaErrorCooperativeLaunchTooLarge;
  emulated::launch_at_once(c->gridDim.x, c->blockDim.x, c->dynamicSmemBytes, [=] { kernel(given...); });
  return 0;
}

#define threadIdx (emulated::thread_index())
#define __syncthreads() emulated::wait(emulated::at_block)
#define __syncwarp() emulated::wait(emulated::at_warp)
